"""A request's plan: its choices and their seed, and what the answer says of how they were made."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from api_doubles import END, MODEL, TOKENIZER, Running, ScriptedBackend, Start, make_round

from server.backend import GenerationRequest, Round

HI: list[Any] = [{"role": "user", "content": "Hi"}]


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


def test_cached_prompt_tokens_are_reported(start: Start) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[Round, None]:
        yield make_round([40], cached_tokens=3)
        yield make_round([41, END], cached_tokens=9, stop_reason="stop_token", stop_token_id=END)

    running = start(ScriptedBackend(script=script))
    assert running.chat(n=2).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    running.backend.script = None
    assert running.chat().json()["usage"]["prompt_tokens_details"] is None


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


def test_a_drawn_seed_is_reported(gateway: Running) -> None:
    answers = [gateway.sdk.chat.completions.create(model=MODEL, messages=HI) for _ in range(2)]
    seeds = [answer.tandem["seed"] for answer in answers]
    assert seeds == [request.sampling.seed for request in gateway.backend.requests[-2:]]
    assert seeds[0] != seeds[1]
