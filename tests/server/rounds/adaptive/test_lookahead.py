"""Whether drafts are prepared ahead, on a virtual clock: used if it pays, cheap if it does not."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from random import Random
from statistics import mean
from typing import Any

import pytest

from basics.names import OnOffAuto
from server.rounds.adaptive.depth import Depth
from server.rounds.adaptive.lookahead import LookaheadChoice, SharedLookahead
from server.rounds.adaptive.pair import PairState
from server.rounds.adaptive.planner import AdaptivePlanner
from server.rounds.adaptive.round import RoundOutcome, RoundPlan, Times
from tests.server.rounds.adaptive.simulator import World, decode, with_lookahead

TOKENS = 1024
SETTLED = 256


def pace(settings: dict[str, Any], mode: OnOffAuto) -> float:
    """Tokens a second once settled, mean of six runs."""
    return _pace(mode, tuple(sorted(settings.items())))


@cache  # several tests compare with the same
def _pace(mode: OnOffAuto, settings: tuple[tuple[str, Any], ...]) -> float:
    paces = []
    for seed in range(6):
        world = world_of(dict(settings), rng=Random(seed))
        arrivals = decode(world, with_lookahead(mode), world.times(), TOKENS)
        paces.append((TOKENS - SETTLED) / (arrivals[-1] - arrivals[SETTLED - 1]))
    return mean(paces)


def settings(round_trip: float, per_token: float, acceptance: float, **more: Any) -> dict[str, Any]:
    """`per_token` in steps of the target."""
    drafted = {"round_trip": round_trip, "per_token": 0.03 * per_token, "acceptance": acceptance}
    return {**drafted, "hit": 0.7, **more}


def world_of(settings: dict[str, Any], **more: Any) -> World:
    return World(**{**settings, "acceptance": lambda token: settings["acceptance"]}, **more)


@pytest.mark.parametrize("acceptance", [0.5, 0.85])
@pytest.mark.parametrize("per_token", [1 / 20, 1 / 5, 1 / 2])
@pytest.mark.parametrize("round_trip", [0.0, 0.005, 0.02, 0.05, 0.08])
def test_it_is_never_slower_than_without(round_trip: float, per_token: float, acceptance: float) -> None:
    asked = settings(round_trip, per_token, acceptance)
    assert pace(asked, "auto") > 0.97 * pace(asked, "off")


@pytest.mark.parametrize("round_trip", [0.0, 0.02])
def test_the_drafting_time_that_it_hides_is_gained(round_trip: float) -> None:
    asked = settings(round_trip, 1 / 5, 0.85)
    always = pace(asked, "on")
    assert always > 1.15 * pace(asked, "off")
    assert pace(asked, "auto") > 0.9 * always


def settled(mode: OnOffAuto, per_token: float, acceptance: float, seed: int = 1, **more: Any) -> RoundPlan:
    """The plan after 600 tokens."""
    world = world_of(settings(0.0, per_token, acceptance, **more), rng=Random(seed))
    planner, times = with_lookahead(mode), world.times()
    decode(world, planner, times, 600)
    planner._pair.credit = 16.0
    return planner.plan(times)


def test_a_draft_that_is_there_may_be_longer_than_one_that_has_to_be_drawn() -> None:
    off, on = settled("off", 1 / 3, 0.9), settled("on", 1 / 3, 0.9)
    assert on.prepared_tokens > off.draft_tokens >= on.draft_tokens > 0
    assert off.prepared_tokens == 0


def test_gamma_settles_where_whole_drafts_are_there() -> None:
    """Two tokens fit beside a verification; without lookahead six are worth drawing."""
    off = [settled("off", 1 / 3, 0.95, seed) for seed in range(8)]
    on = [settled("on", 1 / 3, 0.95, seed, extends=False, hit=0.9) for seed in range(8)]
    assert mean(plan.draft_tokens for plan in off) > 5.5
    assert all(2 <= plan.draft_tokens <= 3 for plan in on)
    assert all(plan.prepared_tokens == 0 for plan in on), "the worker would not take it"


@pytest.mark.parametrize("seed", range(4))
def test_what_a_token_takes_is_learned_though_only_misses_are_drawn(seed: int) -> None:
    """As on a GPU whose graphs draw a token in a twelfth of a pass, by which the worker says what one takes. Whole
    drafts that are there are verified in flight, so that all that is drawn is of one length."""
    asked = settings(0.004, 1 / 25, 0.9, flies=True, hit=0.75, fixed=0.003, step=0.025, per_row=0.0001, most=2)
    world = world_of(asked, claimed_token=0.012, rng=Random(seed))
    planner, times = with_lookahead("on"), world.times()
    decode(world, planner, times, 600)
    assert planner.plan(times).draft_tokens >= 5, "those that are not there have one token otherwise"


def test_it_is_tried_where_drafting_does_not_pay_without_it() -> None:
    asked = settings(0.02, 1 / 5, 0.7)
    plain = 1 / world_of(asked).plain
    assert pace(asked, "off") < 1.05 * plain
    assert pace(asked, "auto") > 1.15 * plain


@pytest.mark.parametrize("fault", [{"hit": 0.0, "shared": 1.15}, {"hit": 0.3, "shared": 1.5}])
def test_it_is_turned_off_if_it_costs_the_target_more_than_it_hides(fault: dict[str, Any]) -> None:
    asked = settings(0.0, 1 / 20, 0.8, **fault)
    assert pace(asked, "on") < 0.95 * pace(asked, "off")
    assert pace(asked, "auto") > 0.97 * pace(asked, "off")


def test_a_choice_is_made_again_when_times_change() -> None:
    choice = LookaheadChoice()
    took = {True: 1.0, False: 1.3}

    def rounds(count: int) -> float:
        """The share of rounds with lookahead."""
        ahead = 0
        for _ in range(count):
            kind = choice.next()
            ahead += kind
            choice.observe(kind, 4, 3, took[kind])
        return ahead / count

    rounds(100)
    assert choice.pays
    assert rounds(400) > 0.9
    took[True] = 2.0
    rounds(600)
    assert choice.pays is False
    assert rounds(400) < 0.1


@pytest.mark.parametrize("better", [True, False])
def test_a_clear_difference_decides_soon(better: bool) -> None:
    choice = LookaheadChoice()
    asked = []
    for _ in range(60):
        asked.append(choice.next())
        choice.observe(asked[-1], 4, 3, 1.0 if asked[-1] == better else 1.5)
    assert asked.count(not better) <= 12
    assert choice.pays is better


def with_copies(random: Random, ahead: bool, slower: float) -> tuple[int, int, float, bool]:
    """A round of `auto`: γ, accepted tokens, seconds, whether a model drew it. Copies bring anything from 0 to 32."""
    drawn = random.random() < 0.7
    asked = random.choice([2, 3, 4] if ahead else [2, 3, 3]) if drawn else random.choice([8, 12, 15, 20, 25, 30, 32])
    rate = 0.6 if drawn else random.choice([0.3, 0.3, 0.6, 0.95])
    accepted = 0
    while accepted < asked and random.random() < rate:
        accepted += 1
    there = ahead and random.random() < 0.55
    took = 0.2 if drawn and there else 0.225 + (0.042 * asked if drawn else 0.0)
    return asked, accepted, took * random.uniform(0.97, 1.03) * (slower if ahead else 1.0), drawn


@pytest.mark.parametrize(("slower", "better"), [(1.0, True), (1.35, False)])
def test_what_copies_happen_to_bring_does_not_decide(slower: float, better: bool) -> None:
    """By the tokens that came of each γ a fifth of these seeds chose the wrong kind."""
    for seed in range(60):
        random, choice, before = Random(seed), LookaheadChoice(), False
        right = 0
        for number in range(200):
            kind = choice.next()
            right += number >= 50 and kind is better
            if kind == before:
                choice.observe(kind, *with_copies(random, kind, slower))
            before = kind
        assert choice.pays is better, seed
        assert right > 0.6 * 150, seed


def test_a_mode_that_is_set_is_kept() -> None:
    for mode, expected in (("on", True), ("off", False)):
        choice = LookaheadChoice(mode=mode)  # type: ignore[arg-type]
        for _ in range(60):
            choice.observe(expected, 4, 3, 1.0)
            choice.observe(not expected, 4, 3, 0.5)
            assert choice.next() is expected


def many_at_a_time(mode: OnOffAuto, own: float, others: float, streams: int = 8) -> float:
    """Rounds a second: lookahead saves `own` of a second, and costs each round `others` if all have it."""
    shared, random = SharedLookahead(mode), Random(3)
    now, rounds = 0.0, 4_000
    with ExitStack() as serving:
        for _ in range(streams):
            serving.enter_context(shared.serving())
        ends: list[tuple[float, float, bool]] = [(0.01 * one, 0.0, False) for one in range(streams)]
        for number in range(rounds):
            place = min(range(streams), key=lambda one: ends[one][0])
            now, began, kind = ends[place]
            if number >= streams:
                shared.choice.observe(kind, 4, 3, now - began)
            kind = shared.choice.next()
            beside = sum(end[2] for end in ends) / streams
            took = (1.0 - own * kind + others * beside) * random.uniform(0.9, 1.1)
            ends[place] = now + took, now, kind
    return rounds / now


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_of_many_streams_all_count_what_it_costs_the_others(mode: OnOffAuto) -> None:
    """Each alone would gain: by rounds of either kind beside one another lookahead always looks the faster."""
    without = many_at_a_time("off", 0.2, 0.25)
    assert many_at_a_time(mode, 0.2, 0.25) > 0.98 * without
    assert many_at_a_time(mode, 0.2, 0.1) > 1.06 * without


@pytest.mark.parametrize(("faster", "better"), [(0.93, False), (1.07, True)])
def test_streams_that_share_their_passes_tell_the_same(faster: float, better: bool) -> None:
    """What a pass takes differs by a fifth. If each of its rounds were news of its own, chance would decide."""
    streams, runs, passes, settled = 32, 8, 300, 100
    right = 0
    for seed in range(runs):
        shared, random = SharedLookahead("auto"), Random(seed)
        with ExitStack() as serving:
            for _ in range(streams):
                serving.enter_context(shared.serving())
            for number in range(passes):
                kinds = [shared.choice.next() for _ in range(streams)]
                ahead = sum(kinds) / streams
                took = random.lognormvariate(0.0, 0.2) / (1.0 + (faster - 1.0) * ahead)
                for kind in kinds:
                    shared.choice.observe(kind, 4, 3, took)
                right += number >= settled and (ahead > 0.5) is better
    assert right > 0.75 * runs * (passes - settled), right / runs / (passes - settled)


@pytest.mark.parametrize(("began", "ends"), [(4, 1), (1, 4), (2, 1), (2, 2)])
def test_rounds_beside_others_do_not_decide_for_one(began: int, ends: int) -> None:
    """Where those of lookahead take ten times as long."""
    pair, times = PairState(lookahead=SharedLookahead("auto")), World(hit=0.7).times()
    planner = AdaptivePlanner(pair, 4, 8, 1)
    for number in range(60):
        with served(pair, began):
            planner.plan(times)
        ahead = number % 2 == 0
        round_ = RoundOutcome(
            asked=4, num_candidates=1, drafted=4, accepted=3, emitted=4, gain=0, draft_seconds=0.0, draft_failed=False,
            verify_seconds=0.3 if ahead else 0.03, rows=5, lookahead=ahead, looked_ahead=ahead,
        )  # fmt: skip
        with served(pair, ends):
            planner.observe(round_, times)
    with served(pair, 1):
        assert pair.lookahead.choice.pays is None


def served(pair: PairState, streams: int) -> ExitStack:
    """As many requests of the pair at a time."""
    serving = ExitStack()
    for _ in range(streams):
        serving.enter_context(pair.lookahead.serving())
    return serving


def test_on_is_kept_for_few_streams() -> None:
    shared = SharedLookahead("on")
    for _ in range(60):
        assert shared.choice.next()
        shared.choice.observe(True, 4, 3, 9.0)
        shared.choice.observe(False, 4, 3, 1.0)


@pytest.mark.parametrize("per_token", [1 / 20, 1 / 5])
@pytest.mark.parametrize("acceptance", [0.5, 0.7, 0.85, 0.95])
@pytest.mark.parametrize("round_trip", [0.005, 0.02, 0.05, 0.08])
def test_verifications_in_flight_are_never_slower_than_without(
    round_trip: float, acceptance: float, per_token: float
) -> None:
    asked = settings(round_trip, per_token, acceptance)
    assert pace({**asked, "flies": True}, "auto") > 0.97 * pace(asked, "auto")


@pytest.mark.parametrize("round_trip", [0.02, 0.05, 0.08])
def test_the_round_trip_that_they_hide_is_gained(round_trip: float) -> None:
    asked = settings(round_trip, 1 / 20, 0.85)
    assert pace({**asked, "flies": True}, "on") > 1.1 * pace(asked, "on")


@pytest.mark.parametrize("per_token", [1 / 20, 1 / 5])
@pytest.mark.parametrize("acceptance", [0.5, 0.7, 0.85, 0.95])
@pytest.mark.parametrize("round_trip", [0.005, 0.02, 0.05, 0.08])
def test_several_in_flight_are_never_slower_than_one(round_trip: float, acceptance: float, per_token: float) -> None:
    asked = settings(round_trip, per_token, acceptance, flies=True)
    assert pace(asked, "on") > 0.97 * pace({**asked, "most": 2}, "on")


@pytest.mark.parametrize("round_trip", [0.08, 0.12])
def test_a_way_longer_than_a_pass_is_hidden_by_several(round_trip: float) -> None:
    asked = settings(round_trip, 1 / 20, 0.95, flies=True)
    assert pace(asked, "on") > 1.05 * pace({**asked, "most": 2}, "on")


@pytest.mark.parametrize("round_trip", [0.08, 0.12])
def test_several_in_flight_are_given_up_where_they_cost_drafts_for_what_comes(round_trip: float) -> None:
    asked = settings(round_trip, 1 / 20, 0.95, flies=True, misses_beyond=0.5)
    assert pace(asked, "on") > 0.95 * pace({**asked, "most": 2}, "on"), "0.84 without taking turns"


def far(round_trip: float, pass_rows: int = 4, step: float = 0.03) -> Times:
    """Passes of 30 ms, a token drafted in 2."""
    times = World(hit=0.7).times()
    for _ in range(20):
        times.steps.observe_verify(4, pass_rows, step, step + round_trip)
        times.drafts.observe(4, 0.008)
    return times


def test_none_is_sent_where_the_target_is_near_or_loaded_or_guesses_fail() -> None:
    assert Depth().under_way(far(0.0005), 3) == 1
    assert Depth().under_way(far(0.02, pass_rows=64), 3) == 1
    near, depth = far(0.02), Depth()
    assert depth.under_way(near, 3) == 2
    for _ in range(40):
        depth.observe(False, 1)
    assert depth.under_way(near, 3) == 1
    assert any(depth.under_way(near, 3) > 1 for _ in range(200)), "it is tried again"


def test_as_many_are_under_way_as_cover_the_way() -> None:
    assert [Depth().under_way(far(way), 3) for way in (0.02, 0.04, 0.08, 0.3)] == [2, 3, 4, 5]


def test_a_level_that_is_of_no_use_is_left_alone_and_tried_again() -> None:
    depth, times = Depth(), far(0.2)
    for others, share in ((1, 0.9), (2, 0.8), (3, 0.0)):
        for number in range(200):
            depth.observe(number % 10 < 10 * share, others)
    assert depth.under_way(times, 3) == 3
    assert any(depth.under_way(times, 3) > 3 for _ in range(200))
    for _ in range(120):
        depth.observe(False, 1)
    assert depth.under_way(times, 3) == 1, "what is sent behind one that fails is of no use"
