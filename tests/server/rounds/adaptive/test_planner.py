"""The planner on a virtual clock, and the estimates it relies on."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import mean
from typing import Any

import pytest

from protocol.worker_info import StepTime
from server.fleet.times import DraftTimes, StepTimes
from server.rounds.adaptive.acceptance import Acceptance
from server.rounds.adaptive.candidates import CandidateCount
from server.rounds.adaptive.pair import PairState
from server.rounds.adaptive.planner import AdaptivePlanner, FixedPlanner
from server.rounds.adaptive.round import RoundOutcome, Times
from tests.server.rounds.adaptive.simulator import World, adaptive, decode, speed_up

BAD: dict[str, dict[str, Any]] = {
    "always wrong": {"acceptance": lambda token: 0.0},
    "nearly always wrong": {"acceptance": lambda token: 0.05},
    "slow": {"acceptance": lambda token: 0.9, "per_token": 0.05},
    "slow and wrong": {"acceptance": lambda token: 0.0, "per_token": 0.05},
    "always stalling": {"stalls": lambda call: True},
    "often stalling": {"stalls": lambda call: call % 3 == 0},
    "stalling and wrong": {"acceptance": lambda token: 0.0, "stalls": lambda call: call % 10 == 0},
    "far away": {"acceptance": lambda token: 0.5, "round_trip": 0.06},
    "a curve that lies": {"acceptance": lambda token: 0.3, "per_row": 0.01, "claimed_row": 0.0},
    "a curve that says too much of others' rows": {
        "acceptance": lambda token: 0.05,
        "per_row": 0.0005,
        "claimed_row": 0.01,
        "others": 7,
        "beside": 28,
    },
    "loaded": {"acceptance": lambda token: 0.2, "per_row": 0.005, "others": 40},
}
GOOD: dict[str, dict[str, Any]] = {
    "always right": {"acceptance": lambda token: 1.0},
    "right 8 of 10": {"acceptance": lambda token: 0.8},
    "right 6 of 10": {"acceptance": lambda token: 0.6},
    "dear rows": {"acceptance": lambda token: 0.7, "per_row": 0.005, "per_token": 0.005},
    "seldom stalling": {"acceptance": lambda token: 0.8, "stalls": lambda call: call % 30 == 0},
}


def run(settings: dict[str, Any], seed: int, tokens: int, planner: Any = None) -> tuple[World, list[float]]:
    world = World(**settings, rng=Random(seed))
    return world, decode(world, planner or adaptive(), world.times(), tokens)


def settled(settings: dict[str, Any], make: Any) -> float:
    """The speed that planners reach, relative to plain decoding."""
    return mean(speed_up(*run(settings, seed, 1024, make()), 256, 1024) for seed in range(4))


@pytest.mark.parametrize("settings", BAD.values(), ids=BAD)
def test_after_settling_a_bad_draft_costs_under_five_percent(settings: dict[str, Any]) -> None:
    for seed in range(8):
        world, arrivals = run(settings, seed, 1024)
        assert speed_up(world, arrivals, 256, 512) >= 0.95
        assert speed_up(world, arrivals, 512, 1024) >= 0.95


@pytest.mark.parametrize("settings", GOOD.values(), ids=GOOD)
def test_a_good_draft_is_used_nearly_as_well_as_the_best_fixed_gamma(settings: dict[str, Any]) -> None:
    best = max(settled(settings, lambda count=count: FixedPlanner(count, 1)) for count in range(1, 9))
    assert best > 1.1
    assert settled(settings, adaptive) >= 0.9 * best


@pytest.mark.parametrize("together", [True, False])
def test_a_stall_that_eight_requests_share_is_one(together: bool) -> None:
    """A draft worker that stands still for a moment fails them all, and is as good as ever after it."""
    pair, world = PairState(), World(acceptance=lambda token: 0.8)
    planners, times = [AdaptivePlanner(pair, 4, 8, 1) for _ in range(8)], world.times()
    for planner in planners:
        decode(world, planner, times, 64)
    for number, planner in enumerate(planners):
        asked_at = 10.0 + (0.01 * number if together else number)
        planner.plan(times)
        planner.observe(RoundOutcome(4, 1, 0, 0, 1, 0, 0.3, True, 0.03, 1, asked_at=asked_at), times)
    assert all((planner.plan(times).draft_tokens > 0) is together for planner in planners)


DEAR: dict[str, dict[str, Any]] = {
    "4 ms a token": {"branching": 0.004, "rescue": 0.4},
    "8 ms a token": {"branching": 0.008, "rescue": 0.4},
    "20 ms a token: they make speculation cost more than it brings": {"branching": 0.02, "rescue": 0.4},
    "their rows": {"per_row": 0.006, "rescue": 0.1},
}


@pytest.mark.parametrize("settings", DEAR.values(), ids=DEAR)
def test_candidates_that_cost_more_than_they_win_are_given_up(settings: dict[str, Any]) -> None:
    assert settled(settings, lambda: FixedPlanner(4, 3)) < 0.9 * settled(settings, lambda: FixedPlanner(4, 1))
    assert settled(settings, lambda: adaptive(num_candidates=3)) >= 0.92 * settled(settings, adaptive)


def test_candidates_that_win_more_than_they_cost_are_kept() -> None:
    settings = {"branching": 0.001, "rescue": 0.4, "per_row": 0.0005, "acceptance": lambda token: 0.6}
    kept = settled(settings, lambda: adaptive(num_candidates=3))
    assert kept >= 1.15 * settled(settings, adaptive)
    assert kept >= 0.92 * settled(settings, lambda: FixedPlanner(4, 3))


def test_the_next_request_knows_how_many_candidates_are_worth_it() -> None:
    world = World(**DEAR["8 ms a token"])

    def seconds(num_candidates: int) -> float:
        pair, times = PairState(), world.times()
        decode(world, adaptive(pair, num_candidates=num_candidates), times, 512)
        later = [decode(world, adaptive(pair, num_candidates=num_candidates), times, 64) for _ in range(8)]
        return sum(arrivals[-1] for arrivals in later)

    assert seconds(1) >= 0.9 * seconds(3)


def test_the_rows_of_further_candidates_make_drafts_shorter() -> None:
    def planned(rows: int) -> int:
        """γ after rounds of three candidates that took so many rows, of which five were the first one's."""
        world, planner = World(per_row=0.004), adaptive(num_candidates=3)
        times, seconds = world.times(), world.verify(rows)
        for accepted in [1, 2, 3, 4, 5] * 8:
            times.steps.observe_plain(1, world.plain)
            times.steps.observe_verify(rows, rows, seconds, seconds)
            times.drafts.observe(5, world.fixed + 5 * world.per_token, 3)
            planner.observe(RoundOutcome(5, 3, 5, accepted, accepted + 1, 5, 0.01, False, seconds, rows), times)
        plan = planner.plan(times)
        assert plan.num_candidates == 3
        return plan.draft_tokens

    assert planned(16) < planned(6)


def test_each_limit_of_candidates_has_its_own_count() -> None:
    pair = PairState()
    for most in (1, 2, 3, 8):
        adaptive(pair, num_candidates=most)
    assert {most: count.count for most, count in pair.candidates.items()} == {1: 1, 2: 2, 3: 3, 8: 8}


def test_a_draft_that_becomes_good_is_found_again() -> None:
    settings = {"acceptance": lambda token: 0.95 if token > 400 else 0.0}
    for seed in range(4):
        world, arrivals = run(settings, seed, 1024)
        assert speed_up(world, arrivals, 100, 400) >= 0.95
        assert speed_up(world, arrivals, 700, 1024) >= 1.5


def test_a_request_starts_with_what_the_last_one_learned() -> None:
    pair, world = PairState(), World(acceptance=lambda token: 0.0)
    times = world.times()
    decode(world, adaptive(pair), times, 64)
    arrivals = [decode(world, adaptive(pair), times, 64) for _ in range(8)]
    assert mean(64 * world.plain / a[-1] for a in arrivals) >= 0.95


def test_the_first_rounds_use_the_pairs_gamma() -> None:
    world = World()
    assert adaptive(draft_tokens=5).plan(world.times()).draft_tokens == 5
    assert adaptive(draft_tokens=5, most=3).plan(world.times()).draft_tokens == 3


def test_fixed_is_what_was_asked() -> None:
    planner = FixedPlanner(7, 3)
    plan = planner.plan(World().times())
    assert (plan.draft_tokens, plan.num_candidates) == (7, 3)


def test_acceptance_by_position() -> None:
    acceptance = Acceptance(fading=1.0, strength=1.0)
    for _ in range(200):
        acceptance.observe(3, 3, 1)
    first, second, third = acceptance.rates(3)
    assert first > 0.98
    assert second < 0.02
    assert third < 0.02, "a position not reached is judged by the one before it"
    assert acceptance.expected_tokens(3)[-1] == pytest.approx(1 + first + first * second + first * second * third)


def test_positions_without_a_draft_yield_nothing() -> None:
    acceptance = Acceptance(fading=1.0, strength=1.0)
    for _ in range(100):
        acceptance.observe(4, 0, 0)
    assert acceptance.fill() < 0.02
    assert acceptance.expected_tokens(4)[-1] < 1.02


def test_a_request_corrects_its_prior() -> None:
    prior = Acceptance(fading=1.0, strength=1.0)
    for _ in range(100):
        prior.observe(1, 1, 1)
    request = Acceptance(fading=1.0, strength=4.0, prior=prior)
    assert request.rates(1)[0] == pytest.approx(prior.rates(1)[0])
    for _ in range(36):
        request.observe(1, 1, 0)
    assert request.rates(1)[0] == pytest.approx(0.1, abs=0.01)


def test_step_times_follow_the_load() -> None:
    curve = [StepTime(rows=rows, seconds=0.01 * rows) for rows in (1, 2, 4, 8, 16, 32)]
    steps = StepTimes(curve)
    assert steps.plain() == pytest.approx(0.01)
    assert steps.verify(6) == pytest.approx(0.06)
    for _ in range(50):
        steps.observe_verify(4, 12, 0.24, 0.25)
    assert steps.verify(4) == pytest.approx(0.25, rel=0.02), "twice the curve, eight rows of others, and the network"
    assert steps.plain() == pytest.approx(0.18, rel=0.02)
    for _ in range(50):
        steps.observe_plain(9, 0.12)
    assert steps.plain() == pytest.approx(0.12, rel=0.02), "what was measured goes before what was concluded"
    assert steps.verify(4) == pytest.approx(0.25, rel=0.02)


@pytest.mark.parametrize(("call", "most", "least"), [(0.03, 100, 12), (0.2, 30, 3), (1.0, 12, 2)])
def test_the_more_asking_takes_the_seldomer_a_worker_that_has_nothing_is_asked(
    call: float, most: int, least: int
) -> None:
    """`call`: in tokens of plain decoding. Of 256 tokens few are lost, and in the end it is asked all the same."""
    steps = StepTimes([StepTime(rows=rows, seconds=0.03 * rows) for rows in (1, 2, 32)])
    planner, times = AdaptivePlanner(PairState(), 5, 8, 1, worker_chooses=True), Times(steps, DraftTimes([]))
    came = asked = 0
    while came < 256:
        plan = planner.plan(times)
        if plan.draft_tokens:
            assert plan.worker_chooses
            asked += 1
            planner.observe_nothing(call * 0.03, times)
            assert not planner.plan(times).draft_tokens, "a token has to come first"
            planner._had_nothing = True
            continue
        for _ in range(plan.plain_tokens):
            steps.observe_plain(1, 0.03)
            planner.observe_plain(1)
            came += 1
    assert least <= asked <= most
    assert asked * call < 14.0


@pytest.mark.parametrize(("earlier", "longest"), [(2, 8), (1, 64)])
def test_a_few_wrong_drafts_stop_a_pair_for_long_only_if_its_rounds_have_not_paid(earlier: int, longest: int) -> None:
    """`earlier`: tokens of each of 60 rounds before this request, whose drafts are all wrong."""
    steps = StepTimes([StepTime(rows=rows, seconds=0.03) for rows in (1, 2, 32)])
    times = Times(steps, DraftTimes([]))
    wrong = RoundOutcome(3, 1, 3, 0, 1, 0, 0.006, False, 0.033, 4)
    pair = PairState()
    for _ in range(60):
        AdaptivePlanner(pair, 5, 8, 1, worker_chooses=True).observe(
            replace(wrong, accepted=earlier - 1, emitted=earlier), times
        )
    pair.credit = 16.0
    planner = AdaptivePlanner(pair, 5, 8, 1, worker_chooses=True)
    waits = []
    for _ in range(30):
        plan = planner.plan(times)
        if plan.draft_tokens:
            planner.observe(wrong, times)
        else:
            waits.append(plan.plain_tokens)
            for _ in range(plan.plain_tokens):
                steps.observe_plain(1, 0.03)
                planner.observe_plain(1)
    assert max(waits) == longest


def test_one_hiccup_hardly_moves_a_time() -> None:
    steps = StepTimes([StepTime(rows=1, seconds=0.01)])
    for _ in range(20):
        steps.observe_plain(1, 0.01)
    steps.observe_plain(1, 5.0)
    assert steps.plain() < 0.013


def test_nonsense_from_a_worker_divides_nothing_by_zero() -> None:
    steps = StepTimes([StepTime(rows=0, seconds=0.0), StepTime(rows=1, seconds=0.0)])
    steps.observe_verify(1, 0, 0.0, 0.0)
    steps.observe_plain(0, 0.0)
    assert steps.plain() > 0.0
    assert steps.verify(3) > 0.0


def test_draft_times_learn_fixed_and_per_token() -> None:
    drafts = DraftTimes([StepTime(rows=1, seconds=0.004)])
    assert drafts.draft(5) == pytest.approx(0.02)
    for count in [1, 5, 8, 3] * 20:
        drafts.observe(count, 0.01 + 0.002 * count)
    assert drafts.draft(1) == pytest.approx(0.012, rel=0.1)
    assert drafts.draft(8) == pytest.approx(0.026, rel=0.1)


def test_draft_times_of_more_candidates_are_their_own() -> None:
    drafts = DraftTimes([StepTime(rows=1, seconds=0.004)])
    assert drafts.draft(5, 3) == pytest.approx(0.02)
    for count in [1, 5, 8, 3] * 20:
        drafts.observe(count, 0.01 + 0.002 * count)
    assert drafts.draft(5, 3) == pytest.approx(drafts.draft(5)), "while it is not known, the nearest that is"
    assert (drafts.measured(), drafts.measured(3)) == (True, False)
    for count in [1, 5, 8, 3] * 20:
        drafts.observe(count, 0.01 + 0.008 * count, 3)
    assert drafts.draft(5, 3) == pytest.approx(0.05, rel=0.1)
    assert drafts.draft(5) == pytest.approx(0.02, rel=0.1)
    assert drafts.measured(3)


def test_one_candidate_is_drafted_now_and_then_for_comparison() -> None:
    count = CandidateCount(3)
    asked = []
    for _ in range(66):
        asked.append(count.next())
        count.observe(asked[-1], 5, 4, 1, 0.1)
    assert asked == [1, 1, *[3] * 30, 1, 1, *[3] * 30, 1, 1]


def test_candidates_fall_if_acceptance_is_low() -> None:
    count = CandidateCount(3)
    for _ in range(4):
        count.observe(3, 5, 0, 1, 0.1)
    assert count.count == 3
    count.observe(3, 5, 0, 1, 0.1)
    assert count.count == 2


def test_candidates_fall_if_they_win_less_than_they_cost_and_stay_if_they_win_more() -> None:
    for gain, expected in ((0, 1), (1, 3)):
        count = CandidateCount(3)
        for _ in range(20):
            count.observe(count.count, 5, 4, gain, 0.3)
        assert count.count == expected


def test_candidates_are_tried_again_after_a_rest() -> None:
    count = CandidateCount(2)
    for _ in range(5):
        count.observe(2, 5, 0, 0, 0.1)
    assert count.count == 1
    for _ in range(64):
        count.observe(1, 5, 4, 0, 0.0)
    assert {count.count} == {2}
