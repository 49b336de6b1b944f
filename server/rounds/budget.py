"""A bound on retries, so that a failing fleet is not asked twice as much as a healthy one."""

from __future__ import annotations

import time
from collections.abc import Callable


class RetryBudget:
    """A token bucket: full at first, refilled by `per_success` for each success and `per_second` with time."""

    def __init__(
        self,
        capacity: float = 50.0,
        per_success: float = 0.1,
        per_second: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._capacity = self._tokens = capacity
        self._per_success = per_success
        self._per_second = per_second
        self._clock = clock
        self._updated = clock()

    def success(self) -> None:
        self._tokens = min(self._capacity, self._tokens + self._per_success)

    def take(self) -> bool:
        """Whether one more retry is allowed now."""
        now = self._clock()
        self._tokens = min(self._capacity, self._tokens + (now - self._updated) * self._per_second)
        self._updated = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
