"""The wire's messages: what they refuse, by field, and what they let pass."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from protocol.messages import (
    MAX_CANDIDATES,
    MAX_DRAFT_TOKENS,
    Candidate,
    DraftRequest,
    DraftTimings,
    Grammar,
    Sampling,
    TopK,
    VerifyRequest,
)
from testing.wire import request


def refusal(kind: type[BaseModel], fields: dict[str, Any]) -> str:
    """The validation error, with its place."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(fields)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"round": "1"}, "round"),
        ({"round": -1}, "round"),
        ({"session_id": ""}, "session_id"),
        ({"session_id": "a/b"}, "session_id"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"num_prompt_tokens": 4}, "num_prompt_tokens: exceeds the context's length"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"protocol": 2}, "protocol"),
        ({"candidates": [{"token_ids": [1]}] * (MAX_CANDIDATES + 1)}, "candidates"),
        ({"candidates": [{"token_ids": [1] * (MAX_DRAFT_TOKENS + 1)}]}, "candidates.0.token_ids"),
        ({"candidates": [{"token_ids": [-1]}]}, "candidates.0.token_ids.0"),
        ({"strategy": "hopeful"}, "strategy"),
        ({"acceptance_threshold": float("nan")}, "acceptance_threshold"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], said: str) -> None:
    fields = request([1, 2, 3], candidates=[])
    VerifyRequest.model_validate(fields)
    assert said in refusal(VerifyRequest, fields | changes)


def test_a_context_holds_a_token() -> None:
    assert "must hold at least one token" in refusal(DraftRequest, request([], draft_tokens=1))


def test_draft_tokens_may_be_0_and_no_more_than_the_bound() -> None:
    for draft_tokens in (0, MAX_DRAFT_TOKENS):
        assert DraftRequest.model_validate(request([1], draft_tokens=draft_tokens)).draft_tokens == draft_tokens
    assert "draft_tokens" in refusal(DraftRequest, request([1], draft_tokens=MAX_DRAFT_TOKENS + 1))


@pytest.mark.parametrize("key", ["-1", "x", "²", str(2**31), "", "9" * 5000, "0" * 5000])
def test_logit_bias_is_by_token_id(key: str) -> None:
    told = refusal(Sampling, {"seed": 0, "logit_bias": {key: 1.0}}).splitlines()[1]
    shown = key if len(key) <= 40 else f"{key[:40]}…"
    assert f"logit_bias key {shown!r} is not a token id" in told


def test_a_seed_must_be_given_and_fit_64_bits() -> None:
    assert Sampling(seed=-(2**63)).seed == -(2**63)
    assert "seed" in refusal(Sampling, {"seed": 2**63})
    assert "seed" in refusal(Sampling, {})


def test_lists_that_go_together_are_of_one_length() -> None:
    q = TopK(token_ids=[1, 2], logprobs=[-0.5, -1.0])
    assert Candidate(token_ids=[1], q=[q]).q == [q]
    assert "q: must have one entry for each token" in refusal(Candidate, {"token_ids": [1, 2], "q": [q]})
    assert "logprobs: must have one entry" in refusal(Candidate, {"token_ids": [1], "logprobs": []})
    assert "differ in length" in refusal(TopK, {"token_ids": [1], "logprobs": [-1.0, -2.0]})


def test_json_object_takes_no_value() -> None:
    assert Grammar(type="json_object", value="", start=0).value == ""
    assert "json_object takes none" in refusal(Grammar, {"type": "json_object", "value": "{}", "start": 0})


def test_a_newer_workers_answer_may_have_more_fields() -> None:
    fields = {"queue_ms": 1.0, "forward_ms": 1.0, "sample_ms": 1.0, "total_ms": 3.0}
    assert DraftTimings.model_validate(fields | {"copy_ms": 1.0}) == DraftTimings.model_validate(fields)
    assert "total_ms" in refusal(DraftTimings, fields | {"total_ms": None})
