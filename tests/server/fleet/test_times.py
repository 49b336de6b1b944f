"""How long steps and drafts take, as learned from rounds."""

from __future__ import annotations

import pytest

from protocol.worker_info import StepTime
from server.fleet.times import Average, DraftTimes, StepTimes

CURVE = [StepTime(rows=rows, seconds=seconds) for rows, seconds in ((1, 0.030), (4, 0.036), (8, 0.052))]


def test_the_first_values_of_an_average_count_in_full_and_an_outlier_as_three_times_the_mean() -> None:
    mean = Average(0.1, clip=True)
    assert not mean
    mean.add(1.0)
    mean.add(3.0)
    assert mean.value == pytest.approx(2.0)
    mean.add(1000.0)  # counts as 6
    assert mean.value == pytest.approx(2.0 + (6.0 - 2.0) / 3)


def test_a_target_is_as_fast_as_its_own_curve_until_it_was_seen() -> None:
    times = StepTimes(CURVE)
    assert [times.verify(rows) for rows in (1, 4, 8)] == pytest.approx([0.030, 0.036, 0.052])
    assert times.verify(6) == pytest.approx(0.044), "linear between what was measured"
    assert times.verify(12) == pytest.approx(0.068), "and beyond"
    assert times.plain() == pytest.approx(0.030)
    assert StepTimes(()).verify(4) > StepTimes(()).plain() > 0.0


def test_rounds_correct_the_height_of_the_curve_for_each_size_apart() -> None:
    times = StepTimes(CURVE)
    for _ in range(50):
        times.observe_verify(own_rows=4, pass_rows=4, worker_seconds=0.072, seconds=0.077)
        times.observe_verify(own_rows=8, pass_rows=8, worker_seconds=0.052, seconds=0.057)
    assert times.verify(4) == pytest.approx(0.077, rel=0.02), "twice the curve, and 5 ms of network"
    assert times.verify(8) == pytest.approx(0.057, rel=0.02)
    assert times.verify(5) == pytest.approx(2 * 0.040 + 0.005, rel=0.02), "sizes of 4 to 7 rows are one"


def test_rows_of_other_streams_move_along_the_curve() -> None:
    times = StepTimes(CURVE)
    for _ in range(50):
        times.observe_plain(pass_rows=4, seconds=0.036)
    assert times.plain() == pytest.approx(0.036, rel=0.02)
    assert times.verify(5) == pytest.approx(0.052, rel=0.02), "5 rows of ours and 3 of others"


def test_those_who_are_alike_have_as_many_rows_as_is_asked_about() -> None:
    times = StepTimes([StepTime(rows=rows, seconds=0.010 * rows) for rows in (1, 64)])
    for _ in range(50):
        times.observe_verify(own_rows=4, pass_rows=14, worker_seconds=0.140, seconds=0.140)
    assert times.verify(2) == pytest.approx(0.120), "ten rows of others, whoever they are"
    assert times.verify(2, alike=3) == pytest.approx(0.080), "two others have two, too; two rows are of strangers"
    assert times.verify(2, alike=9) == pytest.approx(0.070), "no more of them than their rows: two and a half"
    assert times.plain(alike=3) == pytest.approx(0.050)
    assert times.prices(1, alike=3) == pytest.approx([0.050, 0.080])


def test_the_price_of_no_draft_is_plain_decodings() -> None:
    times = StepTimes(CURVE)
    for _ in range(50):
        times.observe_plain(pass_rows=1, seconds=0.030)
        times.observe_verify(own_rows=1, pass_rows=1, worker_seconds=0.030, seconds=0.080)
    assert times.prices(3)[0] == times.plain() < 0.04
    assert times.prices(3)[1:] == [times.verify(2), times.verify(3), times.verify(4)]


def test_what_was_not_done_for_a_while_is_as_fast_as_the_machine_is_now() -> None:
    """A busy machine made four rows look dear; plain decoding alone tells that it is free again."""
    times = StepTimes(CURVE)
    for _ in range(30):
        times.observe_plain(pass_rows=1, seconds=0.090)
        times.observe_verify(own_rows=4, pass_rows=4, worker_seconds=0.108, seconds=0.108)
    assert times.verify(4) == pytest.approx(0.108, rel=0.02)
    for _ in range(40):
        times.observe_plain(pass_rows=1, seconds=0.030)
    assert times.plain() == pytest.approx(0.030, rel=0.05)
    assert times.verify(4) == pytest.approx(0.036, rel=0.25)


def test_a_curve_that_others_disturbed_makes_no_rows_cheaper_than_fewer() -> None:
    disturbed = [StepTime(rows=rows, seconds=seconds) for rows, seconds in ((1, 0.240), (2, 0.120), (4, 0.036))]
    times = StepTimes([*disturbed, StepTime(rows=8, seconds=0.052)])
    assert [times.verify(rows) for rows in (1, 2, 4, 8)] == pytest.approx([0.036, 0.036, 0.036, 0.052])
    assert times.verify(32) > 0.052


def test_no_price_is_above_that_of_verifying_more() -> None:
    """Plain decoding was measured beside few rows of others, verifications beside many: the curve says too much."""
    times = StepTimes([StepTime(rows=1, seconds=0.03), StepTime(rows=64, seconds=0.66)])
    for _ in range(8):
        times.observe_plain(8, 0.035)
        times.observe_verify(4, 32, 0.045, 0.045)
    for _ in range(20):
        times.observe_verify(4, 32, 0.045, 0.045)
    assert times.plain() > 1.5 * times.verify(4)
    prices = times.prices(3)
    assert prices == sorted(prices)
    assert prices[-1] == times.verify(4)


def test_rounds_since_plain_decoding_are_counted() -> None:
    times = StepTimes(CURVE)
    times.observe_verify(1, 1, 0.03, 0.03)
    assert times.rounds_since_plain is None, "plain decoding has not been measured at all"
    times.observe_plain(1, 0.03)
    times.observe_verify(1, 1, 0.03, 0.03)
    assert times.rounds_since_plain == 1


def test_a_drafts_time_is_a_line_in_gamma_for_each_number_of_candidates() -> None:
    times = DraftTimes([StepTime(rows=1, seconds=0.003)])
    assert times.draft(4) == pytest.approx(4 * 0.003), "before a call was seen: its own measurement of a token"
    for _ in range(30):
        for gamma in (1, 3, 6):
            times.observe(gamma, 0.005 + 0.002 * gamma)
            times.observe(gamma, 0.010 + 0.004 * gamma, num_candidates=3)
    assert times.draft(5) == pytest.approx(0.015, rel=0.1)
    assert times.draft(5, 3) == pytest.approx(0.030, rel=0.1)
    assert times.draft(5, 4) == times.draft(5, 3), "the nearest that was seen"
    assert (times.measured(3), times.measured(2)) == (True, False)


def test_calls_that_are_alike_stand_for_those_not_seen_yet() -> None:
    claimed = [StepTime(rows=1, seconds=0.012)]
    like = DraftTimes(claimed)
    times = DraftTimes(claimed, like)
    for gamma in (2, 8, 2, 8):
        like.observe(gamma, 0.003 + 0.001 * gamma)
    assert times.draft(5) == like.draft(5) == pytest.approx(0.008, rel=0.1)
    for _ in range(10):
        times.observe(1, 0.006)
    assert times.draft(8) == pytest.approx(0.013, rel=0.15), "a token takes no longer there"


def test_what_a_token_takes_is_learned_from_lengths_that_hardly_differ() -> None:
    times = DraftTimes([StepTime(rows=1, seconds=0.012)])
    for number in range(40):
        times.observe(number % 2, 0.02 + 0.001 * (number % 2))
    assert times.draft(8) < 0.045, "0.012 a token was the worker's own measurement"


def test_one_hiccup_counts_as_three_times_the_line() -> None:
    times = DraftTimes(CURVE)
    for _ in range(20):
        times.observe(4, 0.010)
    times.observe(4, 60.0)
    assert times.draft(4) < 0.02
