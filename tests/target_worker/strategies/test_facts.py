"""What a target reports about its strategies, and what a gateway assumes about a target that does not report it yet."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from basics.names import STRATEGIES as NAMES
from basics.names import Strategy
from config.workers import TargetWorkerConfig
from protocol.worker_info import Capabilities
from target_worker.engine import capabilities
from target_worker.strategies import STRATEGIES

FIRST: list[Strategy] = ["deterministic", "probabilistic", "threshold", "greedy"]
"""The strategies that existed before targets described them."""


def old(**changes: Any) -> dict[str, Any]:
    """The capabilities of a worker from before strategies had facts."""
    message = capabilities(TargetWorkerConfig(), FIRST).model_dump()
    del message["strategy_facts"]
    return message | changes


def test_every_name_has_a_strategy() -> None:
    assert set(STRATEGIES) == set(NAMES)


def test_a_target_from_before_is_understood_as_it_was() -> None:
    understood = Capabilities.model_validate(old())
    for name in FIRST:
        assert understood.facts(name) == STRATEGIES[name].facts(name)
    assert Capabilities.model_validate(old(strategies=["greedy"])).facts("deterministic") is None


def test_a_strategy_without_facts_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="strategy_facts: deterministic is missing"):
        Capabilities.model_validate(old(strategy_facts=[STRATEGIES["threshold"].facts("threshold").model_dump()]))


def test_one_candidate_if_the_strategy_takes_no_more() -> None:
    assert [name for name, strategy in STRATEGIES.items() if strategy.max_candidates == 1] == ["probabilistic"]
