"""What fits the OpenAPI pages, and what nearly does, sent to all three services: answers fit too, and none is a 5xx."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from benchmarks.stacks import Services

# By operation and mode. Thousands were sent by hand: see `send`.
EXAMPLES = 12
MOST_TOKENS = 3
SECONDS = 30
load_all_checks()
# The schema can't say which ids a vocabulary has or what fits a context, so what fits the schema may be refused.
NOT_CHECKED: list[Any] = [CHECKS.get_one("positive_data_acceptance")]
# What is wrong with one item of a batch is said in its place in the answer, which is a 200.
NOT_CHECKED_IN_BATCHES: list[Any] = [*NOT_CHECKED, CHECKS.get_one("negative_data_rejection")]


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("service", ["gateway", "target", "lookup", "model"])
def test_what_comes_back_fits_the_schema(tiny: Services, service: str, mode: GenerationMode) -> None:
    url = {"gateway": tiny.gateway, "target": tiny.target, **tiny.drafters}[service].url
    assert send(url, mode, EXAMPLES) > EXAMPLES


def send(url: str, mode: GenerationMode, examples: int) -> int:
    """Send `examples` cases to each operation of the service; how many there were. Raises on the first wrong answer."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    sent = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(mode))
        def one(case: Any) -> None:
            nonlocal sent
            sent += 1
            _cap(case.body)
            excluded = NOT_CHECKED_IN_BATCHES if case.path.endswith("/batch") else NOT_CHECKED
            case.call_and_validate(excluded_checks=excluded, timeout=SECONDS)

        if (
            mode == GenerationMode.POSITIVE or operation.method.upper() == "POST"
        ):  # the others take nothing to get wrong
            one()
    return sent


def _cap(body: Any) -> None:
    """Few tokens each, so that many can be sent. What is no number stays what it is."""
    if not isinstance(body, dict):
        return
    for name in ("max_tokens", "max_completion_tokens", "n", "best_of"):
        if isinstance(body.get(name), int) and body[name] > MOST_TOKENS:
            body[name] = MOST_TOKENS
    if {"messages", "prompt"} & body.keys() and body.get("max_completion_tokens") is None:
        body.setdefault("max_tokens", MOST_TOKENS)
