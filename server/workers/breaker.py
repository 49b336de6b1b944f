"""A circuit breaker: after a few failures in a row a worker is left alone, then tried again by one caller."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

State = Literal["closed", "half_open", "open"]


class Breaker:
    """Opens after `threshold` failures in a row, for `cooldown` seconds, doubling up to `max_cooldown`.

    When the time is up one caller at a time may try. Whoever got True from `allow` must report `success`, `failure`, or
    `release` where the try gave no verdict.
    """

    def __init__(
        self,
        threshold: int = 3,
        cooldown: float = 1.0,
        max_cooldown: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threshold = threshold
        self._first_cooldown = self._cooldown = cooldown
        self._max_cooldown = max_cooldown
        self._clock = clock
        self._failures = 0
        self._open_until: float | None = None
        self._trying = False

    @property
    def state(self) -> State:
        if self._open_until is None:
            return "closed"
        return "open" if self._clock() < self._open_until else "half_open"

    @property
    def available(self) -> bool:
        """Whether `allow` would say yes."""
        state = self.state
        return state == "closed" or (state == "half_open" and not self._trying)

    def allow(self) -> bool:
        if not self.available:
            return False
        self._trying = self.state == "half_open"
        return True

    def success(self) -> None:
        self._failures = 0
        self._open_until = None
        self._trying = False
        self._cooldown = self._first_cooldown

    def failure(self) -> None:
        self._failures += 1
        if self._open_until is not None and self._trying:
            self._cooldown = min(2 * self._cooldown, self._max_cooldown)
            self._open_until = self._clock() + self._cooldown
        elif self._open_until is None and self._failures >= self._threshold:
            self._open_until = self._clock() + self._cooldown
        self._trying = False

    def release(self) -> None:
        self._trying = False
