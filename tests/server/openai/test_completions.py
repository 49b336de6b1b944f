"""Completions, models, tokens."""

from __future__ import annotations

from typing import Any

import pytest
from api_doubles import END, MODEL, TOKENIZER, Running, ScriptedBackend, Start

TEXT = "the quick brown fox"


def ids(text: str) -> list[int]:
    found: list[int] = TOKENIZER.encode(text).ids
    return found


def test_a_string_prompt(start: Start) -> None:
    running = start(ScriptedBackend(text=" jumps over the lazy dog"))
    answer = running.sdk.completions.create(model=MODEL, prompt="the fox", max_tokens=100)
    assert answer.choices[0].text == " jumps over the lazy dog"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert running.backend.requests[-1].prompt == ids("the fox")
    assert answer.usage.prompt_tokens == len(ids("the fox"))


def test_sixteen_tokens_by_default(start: Start) -> None:
    running = start(ScriptedBackend(text="x" * 50))
    answer = running.sdk.completions.create(model=MODEL, prompt="the fox")
    assert answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"


def test_streamed(gateway: Running) -> None:
    chunks = list(
        gateway.sdk.completions.create(
            model=MODEL, prompt="the", max_tokens=50, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == TEXT
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == 1 + len(ids(TEXT)) + 1
    assert chunks[-1].tandem["lossless"] is True


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (["the", "fox"], [ids("the"), ids("fox")]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
    ],
)
def test_lists_of_prompts(gateway: Running, prompt: Any, expected: list[list[int]]) -> None:
    gateway.backend.requests.clear()
    answer = gateway.sdk.completions.create(model=MODEL, prompt=prompt, n=2, max_tokens=50)
    assert [choice.index for choice in answer.choices] == list(range(2 * len(expected)))
    requests = sorted(gateway.backend.requests, key=lambda request: int(request.request_id.rpartition(".")[2]))
    assert [request.prompt for request in requests] == [prompt for prompt in expected for _ in range(2)]
    # A prompt's choices are numbered as if it were alone, so that its texts are too.
    assert [request.choice_index for request in requests] == [0, 1] * len(expected)
    assert answer.usage.prompt_tokens == sum(map(len, expected))


def test_echo(gateway: Running) -> None:
    answer = gateway.sdk.completions.create(model=MODEL, prompt="say: ", echo=True, max_tokens=50)
    assert answer.choices[0].text == "say: " + TEXT
    answer = gateway.sdk.completions.create(model=MODEL, prompt=ids("say: "), echo=True, max_tokens=50)
    assert answer.choices[0].text == "say: " + TEXT
    chunks = gateway.sdk.completions.create(model=MODEL, prompt="say: ", echo=True, max_tokens=50, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "say: " + TEXT


def test_logprobs(gateway: Running) -> None:
    answer = gateway.sdk.completions.create(model=MODEL, prompt="the", logprobs=2, max_tokens=4)
    logprobs = answer.choices[0].logprobs
    assert "".join(logprobs.tokens) == answer.choices[0].text
    assert logprobs.token_logprobs == [-0.25] * 4
    assert logprobs.text_offset == [sum(map(len, logprobs.tokens[:n])) for n in range(4)]
    assert all(logprobs.tokens[n] in logprobs.top_logprobs[n] for n in range(4))
    streamed = list(gateway.sdk.completions.create(model=MODEL, prompt="the", logprobs=2, max_tokens=4, stream=True))
    offsets = [offset for chunk in streamed for offset in chunk.choices[0].logprobs.text_offset]
    assert offsets == logprobs.text_offset


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [5, "a"]}, "prompt[1]"),
        ({"prompt": ["a", [1]]}, "prompt[1]"),
        ({"prompt": [[1], ["a"]]}, "prompt[1][0]"),
        ({"prompt": [{}]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [100_000]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a"] * 17}, "prompt"),
        ({"prompt": ["a"] * 9, "n": 2}, "n"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 512}, "prompt"),
        ({"messages": []}, "messages"),
    ],
)
def test_bad_requests(gateway: Running, changes: dict[str, Any], param: str | None) -> None:
    response = gateway.post("/v1/completions", {"model": MODEL, "prompt": "the", **changes})
    assert response.status_code == 400, response.text
    assert param is None or response.json()["error"]["param"] == param


def test_models(gateway: Running) -> None:
    cards = gateway.sdk.models.list().data
    assert [card.id for card in cards] == [MODEL, "alias"]
    assert cards[0].created == 1_700_000_000
    card = gateway.sdk.models.retrieve(MODEL)
    assert (card.id, card.object, card.max_model_len, card.root) == (MODEL, "model", 512, MODEL)


def test_tokenize(gateway: Running) -> None:
    answer = gateway.post("/tokenize", {"model": MODEL, "prompt": TEXT, "return_token_strs": True}).json()
    assert answer["tokens"] == ids(TEXT)
    assert answer["count"] == len(ids(TEXT))
    assert answer["max_model_len"] == 512
    assert answer["token_strs"] == TOKENIZER.encode(TEXT).tokens
    chat = gateway.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]}).json()
    assert chat["tokens"] == ids("<|user|>Hi<|end|><|assistant|>")
    bare = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False}
    assert gateway.post("/tokenize", bare).json()["tokens"] == ids("<|user|>Hi<|end|>")
    assert gateway.post("/tokenize", {}).status_code == 400
    assert gateway.post("/tokenize", {"prompt": "", "model": MODEL}).json()["tokens"] == []


def test_detokenize(gateway: Running) -> None:
    answer = gateway.post("/detokenize", {"tokens": [*ids("naïve 😀"), END]})
    assert answer.json() == {"prompt": "naïve 😀<|end|>"}
    assert gateway.post("/detokenize", {"tokens": [100_000]}).status_code == 400
    assert gateway.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}
