"""The budget of retries."""

from __future__ import annotations

from server.rounds.recovery import RetryBudget


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_retry_budget() -> None:
    clock = Clock()
    budget = RetryBudget(capacity=2, per_success=0.5, per_second=1.0, clock=clock)
    assert [budget.take() for _ in range(3)] == [True, True, False]
    budget.success()
    budget.success()
    assert [budget.take() for _ in range(2)] == [True, False]
    clock.now = 100.0
    assert [budget.take() for _ in range(3)] == [True, True, False]
