"""What a request asks of the workers: sampling, speculation, limits; and what they cannot honour, by name."""

from __future__ import annotations

from typing import Any

import pytest
from api_doubles import MODEL, Running, ScriptedBackend, Start, error, served_model

from server.openai.options import SpeculativeOptions

HI: list[Any] = [{"role": "user", "content": "Hi"}]


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


PREDICTION = {"type": "content", "content": "the quick"}


@pytest.mark.parametrize(
    ("able", "body", "param"),
    [
        ({"q": False}, {"speculative": {"strategy": "probabilistic"}}, "speculative.strategy"),
        ({"max_candidates": 1}, {"speculative": {"num_candidates": 2}}, "speculative.num_candidates"),
        ({"max_draft_tokens": 4}, {"speculative": {"draft_tokens": 5}}, "speculative.draft_tokens"),
        ({"prediction": False}, {"prediction": PREDICTION}, "prediction"),
    ],
)
def test_what_a_drafter_cannot_do_matters_to_those_who_use_it(
    start: Start, able: dict[str, Any], body: dict[str, Any], param: str
) -> None:
    running = start(ScriptedBackend(served=served_model(of_small=able, prediction=True)))
    block = body.get("speculative", {})
    for name in (None, "lookup"):
        assert running.chat(**{**body, "speculative": {**block, "draft_model": name}}).status_code == 200
    refused = error(running.chat(**{**body, "speculative": {**block, "draft_model": "small"}}))
    assert (refused["param"], refused["code"]) == (param, "unsupported_parameter")


def test_capabilities_decide(start: Start) -> None:
    bare = start(
        ScriptedBackend(served=served_model(sampling=["temperature"], max_logprobs=0, strategies=["deterministic"]))
    )
    assert bare.chat(temperature=0.5, top_p=1.0, presence_penalty=0).status_code == 200
    for changes, param in [
        ({"top_p": 0.9}, "top_p"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"min_tokens": 1}, "min_tokens"),
        ({"logprobs": True}, "logprobs"),
        ({"speculative": {"strategy": "threshold"}}, "speculative.strategy"),
    ]:
        found = error(bare.chat(**changes))
        assert (found["param"], found["code"]) == (param, "unsupported_parameter")
    assert bare.chat(speculative={"enabled": False, "strategy": "deterministic"}).status_code == 200
    grammar = start(ScriptedBackend(served=served_model(grammar_types=["json_schema", "choice"])))
    format = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    assert grammar.chat(response_format=format).status_code == 200
    asked = grammar.backend.requests[-1]
    assert asked.grammar is not None
    assert (asked.grammar.type, asked.grammar.value) == ("json_schema", '{"type":"object"}')
    assert asked.grammar.start == len(asked.prompt)


def test_context_overflow(gateway: Running) -> None:
    found = error(gateway.chat(messages=[{"role": "user", "content": "x" * 600}]))
    assert (found["code"], found["param"]) == ("context_length_exceeded", "messages")
    assert error(gateway.chat(max_tokens=510))["code"] == "context_length_exceeded"


def test_empty_stops_stop_nothing(gateway: Running) -> None:
    assert gateway.chat(stop=["", "fox"]).json()["choices"][0]["message"]["content"] == "the quick brown "
    assert gateway.chat(stop=[""] * 40).json()["choices"][0]["message"]["content"] == "the quick brown fox"
