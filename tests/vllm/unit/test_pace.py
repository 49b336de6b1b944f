"""How long a step waits for drafts: a share of what steps take, whatever that is."""

from __future__ import annotations

import pytest

from engines.vllm.proposer.pace import Pace
from testing.fakes.vllm_engine import Engine, proposer


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def stepped(pace: Pace, clock: Clock, *seconds: float, counts: bool = True) -> float:
    for step in seconds:
        pace.step_begins()
        clock.now += step
        pace.step_ended(counts)
    return pace.seconds


@pytest.mark.parametrize("seconds", [0.02, 3.0])
def test_half_a_step_however_long_it_is(seconds: float) -> None:
    clock = Clock()
    assert stepped(Pace(None, clock), clock, *[seconds] * 4) == pytest.approx(seconds / 2)


def test_not_less_than_an_answer_takes_anyhow() -> None:
    clock = Clock()
    assert stepped(Pace(None, clock), clock, *[1e-4] * 4) == 0.002


def test_first_steps_do_not_decide_alone() -> None:
    clock = Clock()
    pace = Pace(None, clock)
    assert stepped(pace, clock, 60.0, 0.1) == 0.05
    assert stepped(pace, clock, 0.1) == pytest.approx(0.05)
    assert stepped(pace, clock, 0.2, 0.2, 0.2) == pytest.approx(0.1)


def test_what_does_not_count_is_left_out() -> None:
    clock = Clock()
    pace = Pace(None, clock)
    stepped(pace, clock, *[0.2] * 4)
    assert stepped(pace, clock, *[9.0] * 20, counts=False) == pytest.approx(0.1)


def test_a_deadline_that_was_set_stays() -> None:
    clock = Clock()
    assert stepped(Pace(700.0, clock), clock, *[0.2] * 4) == 0.7


def test_idle_time_between_short_answers_and_the_reading_of_prompts_are_no_steps() -> None:
    clock = Clock()
    made = proposer("http://127.0.0.1:1")
    made._pace = pace = Pace(None, clock)
    for number in range(20):
        engine = Engine(made, [5, 6, number])
        for seconds in (9.0, 0.2):
            clock.now += seconds
            engine.step()
    for _ in range(20):
        clock.now += 9.0
        engine.read()
    assert pace.seconds == pytest.approx(0.1)
    made.close()
