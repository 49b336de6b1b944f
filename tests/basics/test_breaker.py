"""When a breaker lets calls through, on a clock of its own."""

from __future__ import annotations

from basics.breaker import Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_breaker() -> None:
    clock = Clock()
    breaker = Breaker(threshold=2, cooldown=1.0, max_cooldown=3.0, clock=clock)
    breaker.failure()
    breaker.success()
    breaker.failure()
    assert breaker.state == "closed", "only failures in a row count"
    breaker.failure()
    assert not breaker.allow()
    clock.now = 1.0
    assert breaker.allow()
    assert not breaker.allow(), "one caller tries"
    breaker.release()
    assert breaker.allow()
    breaker.failure()
    clock.now = 2.9
    assert not breaker.allow(), "the second time it is left alone for twice as long"
    clock.now = 3.0
    assert breaker.allow()
    breaker.failure()
    clock.now = 6.0
    assert breaker.allow(), "but never longer than the most"
    breaker.success()
    assert breaker.allow()
    assert breaker.allow()
    assert [breaker.state] == ["closed"]


def test_late_failures_of_calls_begun_before_do_not_prolong_it() -> None:
    clock = Clock()
    breaker = Breaker(threshold=1, cooldown=1.0, clock=clock)
    breaker.failure()
    clock.now = 0.9
    breaker.failure()
    clock.now = 1.0
    assert breaker.available


def test_a_failure_of_a_call_begun_before_is_not_a_failed_try() -> None:
    clock = Clock()
    breaker = Breaker(threshold=1, cooldown=1.0, clock=clock)
    assert breaker.failure()
    clock.now = 1.0
    assert not breaker.failure()
    assert breaker.allow()


def test_a_lone_caller_looks_at_open_for() -> None:
    clock = Clock()
    breaker = Breaker(threshold=2, cooldown=1.0, max_cooldown=3.0, clock=clock, lone=True)
    assert not breaker.failure()
    assert breaker.open_for == 0.0
    assert breaker.failure(), "it opened"
    assert breaker.open_for == 1.0
    clock.now = 1.0
    assert breaker.open_for == 0.0
    assert not breaker.failure(), "it was open before"
    assert breaker.open_for == 2.0
    clock.now = 3.0
    breaker.failure()
    assert breaker.open_for == 3.0, "never longer than the most"
    breaker.success()
    assert breaker.open_for == 0.0
    assert not breaker.failure()
