"""Chat completions through the official SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest
from api_doubles import END, MODEL, TOKENIZER, Running, ScriptedBackend, Start, make_round, served_model

from server.backend import GenerationRequest, Round
from server.openai.options import SpeculativeOptions

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


def test_acceptance_is_reported(start: Start) -> None:
    running = start(ScriptedBackend(text="the end of the story", tokens_a_round=3), speculation_metrics="detailed")
    answer = running.sdk.chat.completions.create(model=MODEL, messages=HI)
    tokens = len(TOKENIZER.encode("the end of the story").ids) + 1
    full, rest = divmod(tokens, 3)
    accepted = [2] * full + ([rest - 1] if rest else [])
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens == sum(accepted)
    assert details.rejected_prediction_tokens == 4 * len(accepted) - sum(accepted)
    numbers = answer.metrics["speculative_decoding"]
    assert numbers == {
        "mean_acceptance_length": pytest.approx(1 + sum(accepted) / len(accepted)),
        "draft_acceptance_rate": pytest.approx(sum(accepted) / (4 * len(accepted))),
        "acceptance_histogram": [accepted.count(length) for length in range(6)],
        "num_spec_steps": len(accepted),
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": 4 * len(accepted),
        "num_spec_tokens": 5,
        "accepted_by_drafter": {"lookup": sum(accepted)},
        "per_step_accepted": accepted,
        "per_step_drafted": [4] * len(accepted),
    }


def test_cached_prompt_tokens_are_told(start: Start) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[Round, None]:
        yield make_round([40], cached_tokens=3)
        yield make_round([41, END], cached_tokens=9, stop_reason="stop_token", stop_token_id=END)

    running = start(ScriptedBackend(script=script))
    assert running.chat(n=2).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    running.backend.script = None
    assert running.chat().json()["usage"]["prompt_tokens_details"] is None


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


def test_n_choices_share_one_seed(gateway: Running) -> None:
    gateway.backend.requests.clear()
    answer = gateway.sdk.chat.completions.create(model=MODEL, messages=HI, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {"the quick brown fox"}
    requests = gateway.backend.requests
    assert sorted(request.choice_index for request in requests) == [0, 1, 2]
    assert len({request.sampling.seed for request in requests}) == 1
    assert len({request.request_id for request in requests}) == 3
    assert answer.usage.completion_tokens == 3 * (len(TOKENIZER.encode("the quick brown fox").ids) + 1)


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


def test_sampling_reaches_the_workers(gateway: Running) -> None:
    gateway.sdk.chat.completions.create(
        model="alias",
        messages=HI,
        temperature=0.3,
        top_p=0.9,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"7": -100},
        seed=-5,
        extra_body={
            "top_k": -1,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "stop_token_ids": [9],
            "ignore_eos": True,
            "min_tokens": 2,
            "cache_salt": "mine",
        },
    )
    request = gateway.backend.requests[-1]
    assert request.sampling.model_dump() == {
        "temperature": 0.3,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "logit_bias": {"7": -100.0},
        "min_tokens": 2,
        "ignore_eos": True,
        "stop_token_ids": [9],
        "seed": -5,
    }
    assert request.cache_salt == "mine"


def test_a_seed_is_drawn_and_told(gateway: Running) -> None:
    answers = [gateway.sdk.chat.completions.create(model=MODEL, messages=HI) for _ in range(2)]
    seeds = [answer.tandem["seed"] for answer in answers]
    assert seeds == [request.sampling.seed for request in gateway.backend.requests[-2:]]
    assert seeds[0] != seeds[1]


def test_the_speculative_block(gateway: Running) -> None:
    block = {
        "enabled": True,
        "draft_tokens": 3,
        "draft_model": "small",
        "num_candidates": 2,
        "candidate_temperature": 0.9,
        "candidate_top_p": 0.8,
        "strategy": "threshold",
        "acceptance_threshold": 0.4,
        "max_speculation_depth": 6,
        "adaptive_speculation": False,
    }
    gateway.sdk.chat.completions.create(model=MODEL, messages=HI, extra_body={"speculative": block})
    speculation = gateway.backend.requests[-1].speculation
    assert speculation.adaptive is False
    for name in block.keys() - {"adaptive_speculation"}:
        assert getattr(speculation, name) == block[name], name


def test_null_in_the_speculative_block_is_the_default(gateway: Running) -> None:
    gateway.chat(speculative={})
    default = gateway.backend.requests[-1].speculation
    gateway.chat(speculative=dict.fromkeys(SpeculativeOptions.model_fields))
    assert gateway.backend.requests[-1].speculation == default
    assert gateway.backend.requests[-1].log_decisions is False


def test_the_speculative_block_by_default(gateway: Running) -> None:
    gateway.chat()
    speculation = gateway.backend.requests[-1].speculation
    assert (speculation.enabled, speculation.draft_tokens, speculation.draft_model) == (True, 5, None)
    assert (speculation.num_candidates, speculation.strategy) == (1, "deterministic")
    assert (speculation.max_speculation_depth, speculation.adaptive) == (8, True)
    gateway.chat(speculative={"max_speculation_depth": 2})
    assert gateway.backend.requests[-1].speculation.draft_tokens == 2
    gateway.chat(speculative={"draft_tokens": 12})
    assert gateway.backend.requests[-1].speculation.max_speculation_depth == 12


IDLE = {
    "one candidate": {"num_candidates": 1, "candidate_temperature": 0.3, "candidate_top_p": 0.5},
    "another strategy": {"strategy": "deterministic", "acceptance_threshold": 0.9},
    "a fixed γ": {"adaptive_speculation": False, "max_speculation_depth": 16},
    "no speculation": {"enabled": False, "draft_tokens": 3, "num_candidates": 2, "max_speculation_depth": 4},
}


@pytest.mark.parametrize("block", IDLE.values(), ids=IDLE)
def test_fields_without_effect_are_checked_and_welcome(gateway: Running, block: dict[str, Any]) -> None:
    """As docs/api.md says: clients may send whole blocks of defaults."""
    assert gateway.chat(speculative=block).status_code == 200
    for name in block.keys() - {"strategy", "enabled", "adaptive_speculation"}:
        assert gateway.chat(speculative={**block, name: -1}).json()["error"]["param"] == f"speculative.{name}"


@pytest.mark.parametrize("default", ["deterministic", "threshold"])
def test_where_a_request_names_no_strategy_it_is_the_targets_own(start: Start, default: str) -> None:
    running = start(ScriptedBackend(served=served_model(default_strategy=default)))
    for body in ({}, {"speculative": {}}, {"speculative": {"draft_tokens": 3}}):
        answer = running.chat(**body).json()
        assert running.backend.requests[-1].speculation.strategy == default
        assert answer["tandem"]["strategy"] == default
    answer = running.chat(speculative={"strategy": "probabilistic"}).json()
    assert running.backend.requests[-1].speculation.strategy == answer["tandem"]["strategy"] == "probabilistic"


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
