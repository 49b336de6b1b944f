"""Chat completions through the official SDK."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from api_doubles import END, MODEL, TOKENIZER, Running, ScriptedBackend, Start

HI: list[Any] = [{"role": "user", "content": "Hi"}]


def test_an_answer_in_one_piece(gateway: Running) -> None:
    answer = gateway.sdk.chat.completions.create(model=MODEL, messages=HI, seed=7)
    assert answer.choices[0].message.content == "the quick brown fox"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint == "fp-1"
    prompt = TOKENIZER.encode("<|user|>Hi<|end|><|assistant|>", add_special_tokens=False).ids
    tokens = len(TOKENIZER.encode("the quick brown fox").ids) + 1
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == tokens
    assert answer.usage.total_tokens == len(prompt) + tokens
    assert gateway.backend.requests[-1].prompt == prompt
    assert answer.tandem == {"strategy": "deterministic", "lossless": True, "seed": 7}


def test_a_stream_is_what_openai_sends(gateway: Running) -> None:
    chunks = list(gateway.sdk.chat.completions.create(model=MODEL, messages=HI, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "the quick brown fox"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert chunks[-1].choices[0].delta.model_dump(exclude_unset=True) == {}
    assert all(chunk.object == "chat.completion.chunk" and chunk.id == chunks[0].id for chunk in chunks)
    assert all("usage" not in chunk.model_fields_set for chunk in chunks)
    assert chunks[-1].tandem["strategy"] == "deterministic"


def test_a_stream_ends_with_the_usage_where_wanted(gateway: Running) -> None:
    chunks = list(
        gateway.sdk.chat.completions.create(
            model=MODEL, messages=HI, stream=True, seed=3, stream_options={"include_usage": True}
        )
    )
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(TOKENIZER.encode("the quick brown fox").ids) + 1
    assert chunks[-1].tandem == {"strategy": "deterministic", "lossless": True, "seed": 3}
    assert chunks[-1].metrics["speculative_decoding"]["num_spec_steps"] > 0


def test_a_stream_on_the_wire(gateway: Running) -> None:
    body = {"model": MODEL, "messages": HI, "stream": True}
    answer = gateway.post("/v1/chat/completions", body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = answer.text.split("\n\n")
    assert events[-1] == ""
    assert events[-2] == "data: [DONE]"
    assert all(event.startswith("data: {") for event in events[:-2])


async def _stream_text(running: Running) -> str:
    text = ""
    async with running.async_sdk as client:
        async for chunk in await client.chat.completions.create(model=MODEL, messages=HI, stream=True):
            text += chunk.choices[0].delta.content or ""
    return text


def test_async_streams(gateway: Running) -> None:
    async def several() -> list[str]:
        return await asyncio.gather(*(_stream_text(gateway) for _ in range(8)))

    assert asyncio.run(several()) == ["the quick brown fox"] * 8


def test_streamed_choices(gateway: Running) -> None:
    texts = ["", ""]
    finished = []
    for chunk in gateway.sdk.chat.completions.create(model=MODEL, messages=HI, n=2, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        finished += [choice.index] * (choice.finish_reason is not None)
    assert texts == ["the quick brown fox"] * 2
    assert sorted(finished) == [0, 1]


def test_max_tokens_ends_with_length(gateway: Running) -> None:
    answer = gateway.sdk.chat.completions.create(model=MODEL, messages=HI, max_completion_tokens=2)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 2
    assert answer.choices[0].message.content == TOKENIZER.decode(TOKENIZER.encode("the quick brown fox").ids[:2])


@pytest.mark.parametrize("tokens_a_round", [1, 2, 5, 50])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_cuts_the_same_however_rounds_fall(start: Start, tokens_a_round: int, stream: bool) -> None:
    running = start(ScriptedBackend(text="the quick brown fox", tokens_a_round=tokens_a_round))
    if stream:
        chunks = list(
            running.sdk.chat.completions.create(
                model=MODEL, messages=HI, stop="k br", stream=True, stream_options={"include_usage": True}
            )
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "the quic"
        usage = chunks[-1].usage
    else:
        answer = running.sdk.chat.completions.create(model=MODEL, messages=HI, stop=["zzz", "k br"])
        assert answer.choices[0].message.content == "the quic"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].stop_reason == "k br"
        usage = answer.usage
    ids = TOKENIZER.encode("the quick brown fox").ids
    completing = next(n for n in range(len(ids) + 1) if "k br" in TOKENIZER.decode(ids[:n]))
    assert usage.completion_tokens == completing
    assert running.backend.closed


def test_the_stop_string_may_be_shown(gateway: Running) -> None:
    answer = gateway.sdk.chat.completions.create(
        model=MODEL, messages=HI, stop="quick", extra_body={"include_stop_str_in_output": True}
    )
    assert answer.choices[0].message.content == "the quick"


def test_logprobs(gateway: Running) -> None:
    answer = gateway.sdk.chat.completions.create(model=MODEL, messages=HI, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    assert "".join(entry.token for entry in content[:-1]) == "the quick brown fox"
    assert bytes(content[0].bytes).decode() == content[0].token
    assert content[0].logprob == -0.25
    assert len(content[0].top_logprobs) == 2
    streamed = gateway.sdk.chat.completions.create(model=MODEL, messages=HI, logprobs=True, top_logprobs=2, stream=True)
    entries = [entry for chunk in streamed if (found := chunk.choices[0].logprobs) for entry in found.content]
    assert [entry.token for entry in entries] == [entry.token for entry in content]


def test_roles_and_parts(gateway: Running) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "refusal": "no", "tool_calls": None, "annotations": [], "audio": None},
        {"role": "user", "content": "c", "name": "Ann"},
    ]
    gateway.chat(messages=messages)
    expected = "<|system|>Be brief.<|end|><|user|>a\nb<|end|><|assistant|>no<|end|><|user|>c<|end|><|assistant|>"
    assert gateway.backend.requests[-1].prompt == TOKENIZER.encode(expected, add_special_tokens=False).ids


def test_an_answer_can_be_sent_back(gateway: Running) -> None:
    message = gateway.sdk.chat.completions.create(model=MODEL, messages=HI).choices[0].message
    again = [*HI, message.model_dump(), {"role": "user", "content": "More"}]
    assert gateway.sdk.chat.completions.create(model=MODEL, messages=again).choices[0].message.content


def test_continuing_the_final_message(gateway: Running) -> None:
    messages = [*HI, {"role": "assistant", "content": "the quick "}]
    gateway.chat(messages=messages, continue_final_message=True, add_generation_prompt=False)
    expected = "<|user|>Hi<|end|><|assistant|>the quick "
    assert gateway.backend.requests[-1].prompt == TOKENIZER.encode(expected, add_special_tokens=False).ids


def test_what_openai_accepts_without_effect(gateway: Running) -> None:
    answer = gateway.sdk.chat.completions.create(
        model=MODEL,
        messages=HI,
        user="u",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        parallel_tool_calls=True,
        modalities=["text"],
        prompt_cache_key="k",
        safety_identifier="s",
    )
    assert answer.choices[0].message.content
    assert gateway.chat(temperature=None, top_p=None, n=None, stop=None, seed=None, tools=None).status_code == 200


def test_hidden_special_tokens(start: Start) -> None:
    running = start(ScriptedBackend(text="the<|user|> end"))
    assert running.chat().json()["choices"][0]["message"]["content"] == "the end"
    shown = running.chat(skip_special_tokens=False).json()["choices"][0]["message"]["content"]
    assert shown == "the<|user|> end"
    ended = running.chat(skip_special_tokens=False, include_stop_str_in_output=True, stop_token_ids=[END]).json()
    assert ended["choices"][0]["message"]["content"] == "the<|user|> end<|end|>"
    assert ended["choices"][0]["stop_reason"] == END


def test_errors_come_as_the_sdk_expects_them(gateway: Running) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        gateway.sdk.chat.completions.create(model="nope", messages=HI)
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as bad:
        gateway.sdk.chat.completions.create(model=MODEL, messages=HI, temperature=3)
    assert bad.value.param == "temperature"
