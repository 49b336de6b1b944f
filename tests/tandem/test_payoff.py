"""The doctor's arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.rounds.adaptive import depth
from tandem.payoff import FAR, WORTH_IT, Costs, Yield, acceptance_of, flight_verdict, judge, lookahead_verdict, speed_up

# A good set-up: a step hardly grows with its rows, and drafts are cheap.
GOOD = Costs(steps=((1, 30.0), (6, 33.0)), draft_call=1.0, draft_token=1.0, draft_round_trip=0.5, target_round_trip=0.5)


def test_a_round_by_hand() -> None:
    assert GOOD.round(5) == pytest.approx(1 + 5 * 1 + 0.5 + 33 + 0.5)
    verdict = judge(GOOD, Yield(0.5), 5)
    assert verdict.tokens_a_round == pytest.approx(1 + 0.5 + 0.25 + 0.125 + 0.0625 + 0.03125)
    assert verdict.speed_up == pytest.approx(1.96875 * 30 / 40)
    assert verdict.round_ms == pytest.approx(40)
    assert verdict.needed_tokens_a_round == pytest.approx(40 / 30)
    assert verdict.pays
    assert verdict.reasons == ()


@pytest.mark.parametrize(
    ("rows", "expected"), [(1, 10.0), (2, 12.0), (3, 14.0), (5, 20.0), (7, 26.0), (9, 32.0), (0, 10.0)]
)
def test_steps_between_and_beyond_what_was_measured(rows: int, expected: float) -> None:
    costs = replace(GOOD, steps=((7, 26.0), (1, 10.0), (3, 14.0)))
    assert costs.step(rows) == pytest.approx(expected)


def test_more_rows_never_seem_to_take_less() -> None:
    """Measured on a busy machine: by the slope of the last two a step of 15 rows would take less than nothing."""
    busy = replace(GOOD, steps=((1, 100.0), (4, 150.0), (6, 348.0), (8, 190.0)))
    assert [busy.step(rows) for rows in (1, 4, 6, 8, 15, 33)] == [100.0, 150.0, 190.0, 190.0, 190.0, 190.0]
    payoff = judge(busy, Yield(0.7), 5)
    assert payoff.best_speed_up < 1 / (1 - 0.7), "more tokens a round than that can't come"


def test_one_measured_step_holds_for_all() -> None:
    assert replace(GOOD, steps=((1, 7.0),)).step(9) == 7.0
    with pytest.raises(ValueError, match="no step time"):
        replace(GOOD, steps=()).step(1)


def test_rounds_without_a_draft_cost_less_and_bring_one_token() -> None:
    nothing_found = speed_up(GOOD, Yield(1.0, coverage=0.0), 5)
    assert nothing_found == pytest.approx(30 / (1 + 0.5 + 30 + 0.5))


def test_acceptance_counts_the_first_rejected_token_of_a_round() -> None:
    # Rounds with 0, 0, 2 and 3 (all) of γ = 3 accepted: 5 accepted, 3 rejected.
    assert acceptance_of(5, [2, 0, 1, 1], 3) == pytest.approx(5 / 8)
    assert acceptance_of(0, [], 3) == 0.0
    assert acceptance_of(6, [0, 0, 0, 2], 3) == 1.0


def only_reason(costs: Costs, gains: Yield, draft_tokens: int = 5) -> str:
    verdict = judge(costs, gains, draft_tokens)
    assert not verdict.pays
    [reason] = verdict.reasons
    return reason


def test_a_slow_draft_is_blamed() -> None:
    costs = replace(GOOD, draft_token=30.0)
    assert only_reason(costs, Yield(0.5)).startswith("the draft is too slow: 151.0 ms for 5 tokens")


def test_low_acceptance_is_blamed() -> None:
    assert only_reason(GOOD, Yield(0.05)).startswith("too little is accepted: 1.05 tokens a round")
    assert only_reason(GOOD, Yield(0.9, coverage=0.005)).startswith("too little is accepted")


def test_what_pays_only_a_little_is_explained_too() -> None:
    verdict = judge(GOOD, Yield(0.31), 5)
    assert 1 < verdict.speed_up < WORTH_IT
    assert verdict.pays
    few, slow = verdict.reasons
    assert few.startswith("too little is accepted: 1.45 tokens a round")
    assert few.endswith("1.47 are needed for 1.1×"), "not the 1.33 of paying at all"
    assert slow.startswith("the draft is too slow")
    assert judge(GOOD, Yield(0.35), 5).reasons == ()


def test_long_round_trips_are_blamed() -> None:
    costs = replace(GOOD, draft_round_trip=80.0, target_round_trip=80.0)
    assert only_reason(costs, Yield(0.5)).startswith("the round trips are too long: 160.0 ms a round")


def test_dear_verification_is_blamed() -> None:
    costs = replace(GOOD, steps=((1, 30.0), (6, 180.0)))
    assert only_reason(costs, Yield(0.6)).startswith("verifying is too dear: 6 rows take 150.0 ms more")


def test_the_dominant_part_is_blamed_and_not_one_that_merely_tips_the_balance() -> None:
    # Without its 4.4 ms of round trips, it would just pay; but what is wrong is that little is accepted.
    costs = Costs(((1, 172.8), (6, 180.0)), 1.0, 1.0, 2.2, 2.2)
    gains = Yield(0.08)
    assert speed_up(replace(costs, draft_round_trip=0.0, target_round_trip=0.0), gains, 5) > 1
    assert only_reason(costs, gains).startswith("too little is accepted")


def test_of_several_parts_the_one_that_costs_the_most_speed_comes_first() -> None:
    costs = replace(GOOD, draft_round_trip=40.0, target_round_trip=40.0)
    first, second = judge(costs, Yield(0.8), 5).reasons
    assert first.startswith("the round trips are too long")
    assert second.startswith("too little is accepted")


def test_where_no_single_part_is_to_blame_all_are_told() -> None:
    costs = Costs(((1, 10.0), (6, 100.0)), 50.0, 20.0, 60.0, 60.0)
    verdict = judge(costs, Yield(0.1), 5)
    assert verdict.reasons[0] == "no part alone, but all of these together"
    assert len(verdict.reasons) == 5
    near = judge(replace(costs, draft_round_trip=1.0, target_round_trip=1.0), Yield(0.1), 5)
    assert not any(reason.startswith("the round trips") for reason in near.reasons)


def test_a_better_gamma_is_found() -> None:
    verdict = judge(GOOD, Yield(0.95), 1)
    assert verdict.best_draft_tokens > 5
    assert verdict.best_speed_up > verdict.speed_up
    assert judge(replace(GOOD, draft_token=20.0), Yield(0.5), 5).best_draft_tokens == 1


milliseconds = st.floats(0.01, 1000.0)


@given(
    step=milliseconds,
    growth=milliseconds,
    call=milliseconds,
    token=milliseconds,
    trip=milliseconds,
    acceptance=st.floats(0, 1),
    coverage=st.floats(0, 1),
    gamma=st.integers(1, 16),
)
def test_a_verdict_is_consistent(
    step: float,
    growth: float,
    call: float,
    token: float,
    trip: float,
    acceptance: float,
    coverage: float,
    gamma: int,
) -> None:
    costs = Costs(((1, step), (gamma + 1, step + growth)), call, token, trip, trip)
    verdict = judge(costs, Yield(acceptance, coverage), gamma)
    assert (verdict.speed_up >= WORTH_IT) == (verdict.reasons == ())
    assert 1 <= verdict.tokens_a_round <= gamma + 1
    assert verdict.pays == (verdict.tokens_a_round > verdict.needed_tokens_a_round)
    assert verdict.best_speed_up >= verdict.speed_up
    assert speed_up(replace(costs, draft_token=0.0), Yield(acceptance, coverage), gamma) >= verdict.speed_up


def test_a_verification_in_flight_has_to_hide_a_way_and_to_find_a_draft_in_time() -> None:
    assert FAR == depth._FAR
    assert "only 0.5 of the 33.5 ms" in flight_verdict(GOOD, 5)
    far = replace(GOOD, target_round_trip=20.0)
    assert flight_verdict(far, 5).endswith("foreseen takes 33.0 ms; it comes with `lookahead: auto`")
    assert flight_verdict(far, 5, "off", 2).endswith("; it comes with `lookahead: auto`; the gateway's is off")
    assert flight_verdict(far, 5, "on", 2).endswith("; the gateway's lookahead is on, with which they come")
    assert flight_verdict(far, 5, "on", 1).endswith("the gateway's `verifications_in_flight: 1` turns them off")
    assert "20.0 of the 59.5 ms of a round" in flight_verdict(far, 5)
    hidden = replace(far, hidden=6.0)
    assert "20.0 of the 59.5 ms of a round" in flight_verdict(hidden, 5)
    assert "of the 59.5 ms of a round" in lookahead_verdict(hidden, 5), "both name the same round"
    assert "with drafts of γ 3;" in flight_verdict(replace(far, draft_token=8.0), 5)
    assert "takes 40.0 ms, and the target's pass leaves 33.0 ms" in flight_verdict(replace(far, draft_token=20.0), 5)


def test_lookahead_has_to_hide_something_and_to_find_time_for_it() -> None:
    assert "up to 1.18×" in lookahead_verdict(GOOD, 5)
    assert "only 0.6 of" in lookahead_verdict(replace(GOOD, draft_call=0.1, draft_token=0.1), 5)
    assert "takes 60.0 ms, and verification leaves 33.5 ms" in lookahead_verdict(replace(GOOD, draft_token=10.0), 5)
