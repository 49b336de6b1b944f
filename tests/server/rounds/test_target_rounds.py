"""Rounds that a target drives itself: when it is asked to, what they return, and what it is never asked for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from protocol.messages import Grammar, Sampling
from server.backend import GenerationRequest, Round
from server.errors import InvalidRequest
from testing.fakes.model import STOP, continuation, target_token, top_token
from testing.fakes.worker import Cut, FakeWorker
from tests.server.fleet.harness import PLAIN, PROMPT, SPECULATION, collect, expected, fleet_over, request, tokens

GREEDY = Sampling(seed=1, temperature=0.0)


def driving(*drives: str, sampled: bool = False) -> FakeWorker:
    target = FakeWorker("target")
    target.drives = list(drives)
    target.sampled_rounds = sampled
    return target


def greedy(max_tokens: int = 40, **changes: Any) -> GenerationRequest:
    return replace(request(max_tokens, **changes), sampling=GREEDY)


def served(asked: GenerationRequest, *targets: FakeWorker) -> tuple[list[Round], list[str]]:
    """The rounds, and the paths that the targets were called by."""

    async def main() -> list[Round]:
        async with fleet_over(list(targets), [FakeWorker("draft")]) as fleet:
            return await collect(fleet, asked)

    rounds = asyncio.run(main())
    return rounds, [path for target in targets for path, _ in target.calls]


def paths(asked: GenerationRequest, *targets: FakeWorker) -> set[str]:
    return set(served(asked, *targets)[1])


@pytest.mark.parametrize("drives", [["target"], ["gateway", "target"]])
def test_rounds_come_as_one_stream_with_their_counts(drives: list[str]) -> None:
    target = driving(*drives)
    rounds, called = served(greedy(draft_tokens=4), target)
    assert called == ["/v1/generate"]
    (message,) = [message for _, message in target.calls]
    assert (message.speculation.enabled, message.speculation.draft_tokens) == (True, 4)
    assert tokens(rounds) == expected()
    assert [(r.num_drafted, r.num_accepted) for r in rounds[:-1]] == [(0, 0)] + [(4, 3)] * (len(rounds) - 2)
    assert {r.source for r in rounds[1:-1]} == {"target"}
    assert rounds[-1].stop_reason == "length"


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 9])
def test_max_tokens_is_exact(max_tokens: int) -> None:
    rounds, _ = served(greedy(max_tokens), driving("target"))
    assert tokens(rounds) == expected(max_tokens)


@pytest.mark.parametrize("stop_at", [9, 11, 12, 20])
def test_a_stop_token_ends_it(stop_at: int) -> None:
    target = driving("target")
    target.stop_at = stop_at
    rounds, _ = served(greedy(), target)
    assert tokens(rounds) == [*expected(stop_at - 8), STOP]
    assert rounds[-1].stop_reason == "stop_token"


def test_a_stream_that_breaks_goes_on_where_it_broke() -> None:
    target = driving("target")
    target.faults.extend([Cut(), None])
    rounds, called = served(greedy(), target)
    assert tokens(rounds) == expected()
    assert called == ["/v1/generate"] * 2


def test_another_target_takes_over() -> None:
    broken, other = driving("target"), driving("target")
    broken.always = Cut()
    rounds, _ = served(greedy(), broken, other)
    assert tokens(rounds) == expected()
    assert broken.calls
    assert other.calls


def test_one_that_cannot_draft_for_itself_goes_on_plainly() -> None:
    broken, other = driving("gateway", "target"), driving("gateway")
    broken.always = Cut()
    rounds, _ = served(greedy(), broken, other)
    assert tokens(rounds) == expected()
    assert broken.calls[0][1].speculation.enabled
    assert {(path, message.speculation) for path, message in other.calls} == {("/v1/generate", None)}


def test_without_speculation_the_target_is_asked_not_to_draft() -> None:
    target = driving("target")
    rounds, _ = served(replace(greedy(), speculation=PLAIN), target)
    assert all(message.speculation.enabled is False for _, message in target.calls)
    assert all(r.num_drafted == 0 for r in rounds)
    assert tokens(rounds) == expected()


SAMPLED = {"sampling": Sampling(seed=1, temperature=0.7)}
PROBABILISTIC = replace(SPECULATION, strategy="probabilistic")


@pytest.mark.parametrize(
    ("changes", "sampled", "driver"),
    [
        ({}, False, "/v1/generate"),
        ({"speculation": PROBABILISTIC}, False, "/v1/generate"),
        ({"speculation": replace(SPECULATION, num_candidates=2)}, True, "/v1/verify"),
        ({"speculation": replace(SPECULATION, draft_model="fake-draft")}, True, "/v1/verify"),
        ({"prediction": [1, 2, 3]}, True, "/v1/verify"),
        ({"log_decisions": True}, True, "/v1/verify"),
        ({"grammar": Grammar(type="regex", value="a", start=8)}, True, "/v1/verify"),
        ({"sampling": Sampling(seed=1, temperature=0.0, presence_penalty=0.5)}, True, "/v1/verify"),
        ({"sampling": Sampling(seed=1, temperature=0.0, logit_bias={"3": 1.0})}, True, "/v1/verify"),
        ({"sampling": Sampling(seed=1, temperature=0.0, min_tokens=3)}, True, "/v1/verify"),
        (SAMPLED, True, "/v1/verify"),
        ({**SAMPLED, "speculation": PROBABILISTIC}, True, "/v1/generate"),
        ({**SAMPLED, "speculation": PROBABILISTIC}, False, "/v1/verify"),
    ],
)
def test_a_target_that_offers_both_drives_if_every_promise_is_kept(
    changes: dict[str, Any], sampled: bool, driver: str
) -> None:
    target = driving("gateway", "target", sampled=sampled)
    found = paths(replace(greedy(), **changes), target)
    if driver == "/v1/generate":
        assert found == {driver}
        return
    # If a draft is late the gateway has the target decode plainly for a while, never with its own drafts.
    assert driver in found
    streams = [message.speculation for path, message in target.calls if path == "/v1/generate"]
    assert not any(speculation.enabled for speculation in streams if speculation is not None)


@pytest.mark.parametrize("strategy", ["deterministic", "threshold", "greedy"])
def test_above_temperature_0_all_but_probabilistic_need_the_gateway_to_drive(strategy: Any) -> None:
    asked = replace(greedy(strategy=strategy), **SAMPLED)
    with pytest.raises(InvalidRequest, match=f"^'{strategy}' at temperature above 0") as refused:
        served(asked, driving("target"))
    assert refused.value.param == "speculative.strategy"
    alone, other = driving("target"), driving("gateway")
    rounds, _ = served(asked, alone, other)
    assert tokens(rounds) == continuation(PROMPT, 40, top_token if strategy == "greedy" else target_token)
    assert not alone.calls
    assert paths(replace(asked, speculation=PROBABILISTIC), driving("target")) == {"/v1/generate"}
