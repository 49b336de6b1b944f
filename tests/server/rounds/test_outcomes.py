"""What the planner and the workers' times learn from each round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from protocol.messages import Sampling
from server.backend import Round
from server.fleet.times import DraftTimes, StepTimes
from server.rounds.adaptive.planner import FixedPlanner
from server.rounds.adaptive.round import RoundOutcome, Times
from testing.fakes.model import STOP
from testing.fakes.worker import Answer, FakeWorker
from tests.server.fleet.harness import collect, expected, fleet_over, request, tokens


@dataclass
class Observed:
    """What the planner and the drafter's times observed of the rounds with drafts."""

    outcomes: list[RoundOutcome] = field(default_factory=list)
    draft_times: list[tuple[int, int]] = field(default_factory=list)
    """γ and N."""
    rows: list[int] = field(default_factory=list)
    """As the target's times observed them."""
    whole: list[tuple[float, float]] = field(default_factory=list)
    """For each outcome, what drafting and verifying all that was asked for is expected to take."""


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Observed:
    told = Observed()
    observe = DraftTimes.observe

    def observe_round(self: FixedPlanner, outcome: RoundOutcome, times: Times) -> None:
        told.outcomes.append(outcome)
        told.whole.append((times.drafts.draft(outcome.asked), times.steps.verify(1 + outcome.asked)))

    def observe_draft(self: DraftTimes, draft_tokens: int, seconds: float, num_candidates: int) -> None:
        told.draft_times.append((draft_tokens, num_candidates))
        observe(self, draft_tokens, seconds, num_candidates)

    monkeypatch.setattr(FixedPlanner, "observe", observe_round)
    monkeypatch.setattr(DraftTimes, "observe", observe_draft)
    monkeypatch.setattr(StepTimes, "observe_verify", lambda self, own_rows, *_: told.rows.append(own_rows))
    return told


def drafting(*candidates: list[int]) -> Callable[[Answer], Answer]:
    return lambda answer: {
        **answer,
        "candidates": [{"token_ids": ids, "logprobs": None, "q": None} for ids in candidates],
    }


def test_candidates_and_the_gain_of_more_than_one(observed: Observed) -> None:
    own = expected()
    wrong = (own[2] + 1) % STOP
    draft = FakeWorker("draft")
    draft.faults.extend(
        [
            None,
            drafting([own[1], wrong, 5], own[1:4], [wrong, own[2]]),  # the second goes on where the first fails
            drafting(own[5:8], [own[5], wrong], [own[5]]),  # the first is the best
            drafting([], own[9:12]),  # the first is empty
            drafting(own[13:16]),
        ]
    )

    async def main() -> list[Round]:
        async with fleet_over([FakeWorker("target")], [draft]) as fleet:
            return await collect(fleet, request(num_candidates=3))

    rounds = asyncio.run(main())
    assert tokens(rounds) == own
    assert [r.num_candidates for r in rounds[:5]] == [0, 3, 3, 1, 1]
    seen = observed.outcomes[:4]
    assert [(o.num_candidates, o.accepted, o.gain, o.rows) for o in seen] == [
        (3, 3, 2, 1 + 3 + 2 + 2),
        (3, 3, 0, 1 + 3 + 1),
        (3, 3, 0, 1 + 3),
        (3, 3, 0, 1 + 3),
    ]
    assert observed.rows[:5] == [1 + 3 + 2 + 2, 1 + 3 + 1, 1 + 3, 1 + 3, 1 + 3 * 3]
    assert {number for _, number in observed.draft_times} == {3}


def test_a_whole_draft_that_ends_with_a_stop_token_is_one_like_any_other(observed: Observed) -> None:
    async def main() -> None:
        draft = FakeWorker("draft")
        draft.faults.extend([None, None, drafting([48, 47, 46, STOP])])
        async with fleet_over([FakeWorker("target")], [draft]) as fleet:
            assert tokens(await collect(fleet, request(draft_tokens=4))) == expected()

    asyncio.run(main())
    assert observed.outcomes[1].accepted == 0
    assert len(observed.draft_times) == len(observed.outcomes)


@pytest.mark.parametrize(("last", "stops"), [(STOP, []), (7, [7]), (8, [7])])
def test_what_follows_a_drawn_stop_token_does_not_reveal_that_it_was_drawn(
    observed: Observed, last: int, stops: list[int]
) -> None:
    """γ must not depend on noise that the next round draws with again."""

    async def main() -> None:
        draft = FakeWorker("draft")
        draft.faults.extend([None, None, drafting([48, last])])
        async with fleet_over([FakeWorker("target")], [draft]) as fleet:
            sampling = Sampling(seed=1, stop_token_ids=stops)
            assert tokens(await collect(fleet, replace(request(draft_tokens=4), sampling=sampling))) == expected()

    asyncio.run(main())
    assert expected()[5] != 48, "else the second round accepts the token before"
    first, second = observed.outcomes[:2]
    ended = last != 8
    assert (first.asked, first.drafted, first.accepted) == (4, 4, 4)
    assert (second.asked, second.drafted, second.accepted) == (4, 4 if ended else 2, 0)
    assert second.rows == (5 if ended else 3)
    if ended:
        assert second.draft_seconds >= observed.whole[1][0] > 0.0
        assert second.verify_seconds >= observed.whole[1][1] > 0.0
    assert len(observed.draft_times) == len(observed.outcomes) - ended, "how long a part took is no measure of γ"


def test_a_first_answer_is_no_measure_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have waited for another call to read the prompt, and count all of it as cached."""
    observed: list[int] = []
    monkeypatch.setattr(StepTimes, "observe_verify", lambda self, own_rows, *_: observed.append(own_rows))

    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], [FakeWorker("draft")]) as fleet:
            await collect(fleet, request(draft_tokens=3))
        verified = [1 + len(call.candidates[0].token_ids) if call.candidates else 1 for _, call in target.calls]
        assert observed == verified[1:]

    asyncio.run(main())


def test_a_streams_first_answer_is_no_measure_of_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time includes reading the prompt."""
    observed: list[int] = []
    monkeypatch.setattr(StepTimes, "observe_plain", lambda self, rows, _: observed.append(rows))

    async def main() -> None:
        async with fleet_over([FakeWorker("target")], []) as fleet:
            rounds = await collect(fleet, request(enabled=False))
            assert len(observed) == len(rounds) - 1 > 0

    asyncio.run(main())


def test_a_draft_cut_short_by_a_stop_token_of_the_drafters_own_is_whole(observed: Observed) -> None:
    """A draft model may end texts by tokens that do not end the target's."""

    async def main() -> None:
        draft = FakeWorker("draft")
        own = draft.model
        draft.model = lambda: {**own(), "stop_token_ids": [7]}  # type: ignore[method-assign]
        draft.faults.extend([None, None, drafting([48, 7])])
        async with fleet_over([FakeWorker("target")], [draft]) as fleet:
            assert tokens(await collect(fleet, request(draft_tokens=4))) == expected()

    asyncio.run(main())
    second = observed.outcomes[1]
    assert (second.asked, second.drafted, second.accepted) == (4, 4, 0)
    assert len(observed.draft_times) == len(observed.outcomes) - 1
