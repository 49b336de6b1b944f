"""What many streams of a pair do together: decode plainly, try, and keep what brings more."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from server.rounds.adaptive.crowd import Crowd
from server.rounds.adaptive.pair import PairState
from server.rounds.adaptive.planner import AdaptivePlanner
from server.rounds.adaptive.round import RoundOutcome, RoundPlan
from tests.server.rounds.adaptive.simulator import World, adaptive

STREAMS = 8


def rounds(
    crowd: Crowd, seconds: float, count: int, accepted: int = 3, failed: bool = False, drawn: bool = True
) -> None:
    for _ in range(count):
        emitted = 1 if failed else accepted + 1
        outcome = RoundOutcome(4, 1, 4, accepted, emitted, 0, seconds / 4, failed, 3 * seconds / 4, 5, drawn=drawn)
        crowd.observe_round(outcome, STREAMS)


def plain(crowd: Crowd, count: int, seconds: float = 1.0) -> None:
    for _ in range(count):
        crowd.observe_plain(1, seconds, STREAMS)


def trying() -> Crowd:
    """Where a token takes a second plainly."""
    crowd = Crowd()
    assert crowd.plain_tokens(STREAMS, 0) == 4
    plain(crowd, 4 * STREAMS)
    assert crowd.plain_tokens(STREAMS, 0) == 0
    return crowd


def rest(crowd: Crowd) -> int:
    """Tokens of each until the next try."""
    plain(crowd, 4 * STREAMS)
    return 4 + crowd.plain_tokens(STREAMS, 0)


def test_each_has_one_round_until_all_had_theirs() -> None:
    crowd = trying()
    rounds(crowd, 2.0, STREAMS - 1)
    assert crowd.plain_tokens(STREAMS, crowd.tries) > 0, "it had its round"
    assert crowd.plain_tokens(STREAMS, 0) == 0
    rounds(crowd, 2.0, 1)
    assert crowd.plain_tokens(STREAMS, crowd.tries) == 0


def test_a_stream_that_has_no_round_is_not_waited_for_long() -> None:
    crowd = trying()
    rounds(crowd, 2.0, 3)
    plain(crowd, 4 * STREAMS)
    assert crowd.plain_tokens(STREAMS, crowd.tries) == 0


def test_a_try_that_lost_is_repeated_when_plain_decoding_has_paid_for_it() -> None:
    rests = []
    for seconds in (4.5, 5.0, 20.0, 200.0):
        crowd = trying()
        rounds(crowd, seconds, STREAMS)
        rests.append(rest(crowd))
    assert 4 < rests[0] < rests[1] < rests[2] == rests[3] == 400


def test_a_small_difference_decides_nothing_until_it_was_there_often() -> None:
    crowd = trying()
    rounds(crowd, 4.0, STREAMS)
    assert crowd.plain_tokens(STREAMS, crowd.tries) == 0
    rounds(crowd, 4.5, 30 * STREAMS)
    assert crowd.plain_tokens(STREAMS, crowd.tries) > 0


def test_tokens_decoded_plainly_beside_drafts_count_too() -> None:
    """The rounds are quick; the others wait for them."""
    for slower, gone_on in ((1.0, True), (4.0, False)):
        crowd = trying()
        plain(crowd, 12, slower)
        rounds(crowd, 2.5, STREAMS)
        assert (crowd.plain_tokens(STREAMS, crowd.tries) == 0) is gone_on


def test_the_last_drafts_are_no_measure_of_plain_decoding() -> None:
    crowd = trying()
    rounds(crowd, 6.0, STREAMS)
    rounds(crowd, 60.0, STREAMS)
    plain(crowd, STREAMS, 9.0)
    plain(crowd, 2 * STREAMS)
    assert crowd.plain_tokens(STREAMS, 0) > 100


@pytest.mark.parametrize("accepted", [0, 4])
def test_lucky_drafts_decide_less_than_what_rounds_take(accepted: int) -> None:
    crowd = trying()
    rounds(crowd, 3.0 if accepted == 4 else 1.6, STREAMS, accepted)
    assert crowd.plain_tokens(STREAMS, crowd.tries) == 0


def test_what_copies_bring_says_nothing_of_drafts_that_a_model_drew() -> None:
    crowd = trying()
    rounds(crowd, 0.5, 400, accepted=0, drawn=False)
    rounds(crowd, 4.0, 200, accepted=4)
    assert crowd.plain_tokens(STREAMS, crowd.tries) == 0


def test_what_was_good_for_long_may_be_so_no_more() -> None:
    crowd = trying()
    rounds(crowd, 2.0, 2_000)
    bad = 0
    while not crowd.plain_tokens(STREAMS, crowd.tries):
        rounds(crowd, 6.0, 1)
        bad += 1
    assert bad < 400


def test_drafts_that_fail_bring_a_token() -> None:
    crowd = trying()
    rounds(crowd, 3.0, STREAMS, failed=True)
    assert crowd.plain_tokens(STREAMS, crowd.tries) > 0


def test_what_pays_is_kept_when_plain_decoding_has_been_measured_again() -> None:
    crowd = trying()
    stretches = 0
    for _ in range(2_000):
        if crowd.plain_tokens(STREAMS, crowd.tries):
            plain(crowd, STREAMS)
            stretches += 1
        else:
            rounds(crowd, 2.0, STREAMS)
    assert 8 <= stretches <= 20
    assert crowd.tries == 1


def test_what_was_slow_when_all_began_delays_nothing() -> None:
    crowd = Crowd()
    plain(crowd, 2 * STREAMS, 9.0)
    plain(crowd, 2 * STREAMS)
    assert crowd.plain_tokens(STREAMS, 0) == 0


def test_when_the_next_try_comes_is_said_once() -> None:
    """Streams that are told at different times begin it together."""
    crowd = trying()
    rounds(crowd, 4.5, STREAMS)
    plain(crowd, 4 * STREAMS)
    told = crowd.plain_tokens(STREAMS, 0)
    plain(crowd, 2 * STREAMS, 0.1)
    assert crowd.plain_tokens(STREAMS, 0) == told - 2
    plain(crowd, (told - 2) * STREAMS, 0.1)
    assert crowd.plain_tokens(STREAMS, 0) == 0


def test_a_try_is_judged_by_itself_and_by_plain_decoding_before_it() -> None:
    """The machine was busy, and is free; the drafts were wrong, and are right."""
    crowd = trying()
    rounds(crowd, 20.0, STREAMS, accepted=0)
    plain(crowd, 4 * STREAMS)
    while left := crowd.plain_tokens(STREAMS, 0):
        plain(crowd, left, 0.5)
    rounds(crowd, 1.2, STREAMS)
    rounds(crowd, 1.2, STREAMS)
    assert crowd.plain_tokens(STREAMS, crowd.tries) == 0
    while not crowd.plain_tokens(STREAMS, crowd.tries):
        rounds(crowd, 8.0, 1)
    plain(crowd, 4 * STREAMS, 4.0)
    assert crowd.plain_tokens(STREAMS, 0) == 0, "it is as slow without"


def served(streams: int, pair: PairState) -> ExitStack:
    serving = ExitStack()
    for _ in range(streams):
        serving.enter_context(adaptive(pair).serving())
    return serving


def test_what_is_known_is_known_of_so_many_streams() -> None:
    pair = PairState()
    found = []
    for streams in (2, 4, 7, 8):
        with served(streams, pair):
            found.append(pair.crowd)
    assert found[0] is None
    assert found[1] is found[2] is not found[3]


@pytest.mark.parametrize("in_vain", [False, True])
def test_a_request_waits_after_its_round_for_those_of_the_others(in_vain: bool) -> None:
    pair, times = PairState(), World().times()
    with served(STREAMS, pair):
        planner, other = (AdaptivePlanner(pair, 4, 8, 1, worker_chooses=in_vain) for _ in range(2))
        for _ in range(4 * STREAMS):
            planner.observe_plain(1, 0.03)
        assert planner.plan(times).draft_tokens > 0
        if in_vain:
            planner.observe_nothing(0.002, times)
            planner.plan(times)
        else:
            planner.observe(RoundOutcome(4, 1, 4, 4, 5, 0, 0.01, False, 0.04, 5), times)
        assert planner.plan(times) == RoundPlan(0, plain_tokens=1)
        assert other.plan(times).draft_tokens > 0
        for _ in range(STREAMS - 1):
            if in_vain:
                other.observe_nothing(0.9, times)
            else:
                other.observe(RoundOutcome(4, 1, 4, 4, 5, 0, 0.01, False, 0.9, 5), times)
        assert pair.crowd is not None
        assert pair.crowd.plain_tokens(STREAMS, 0) > 1, "all have lost by it"


def test_two_streams_are_planned_as_one() -> None:
    pair, times = PairState(), World().times()
    with ExitStack() as serving:
        for streams in (1, 2, 3):
            planner = adaptive(pair)
            serving.enter_context(planner.serving())
            assert (planner.plan(times).draft_tokens > 0) is (streams < 3)


def test_asking_a_worker_in_vain_is_part_of_a_try() -> None:
    crowd = trying()
    for _ in range(STREAMS):
        crowd.observe_nothing(1.0, STREAMS)
    assert crowd.plain_tokens(STREAMS, crowd.tries) > 1


def test_tokens_of_which_the_time_is_not_known_end_the_stretch_all_the_same() -> None:
    crowd = Crowd()
    for _ in range(4 * STREAMS):
        crowd.observe_plain(1, None, STREAMS)
    assert crowd.plain_tokens(STREAMS, 0) == 0
