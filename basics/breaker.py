"""A circuit breaker: what fails a few times in a row is left alone for a while, then tried again by one caller."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

State = Literal["closed", "half_open", "open"]


class Breaker:
    """Opens after `threshold` failures in a row, for `cooldown` seconds, doubling up to `max_cooldown`.

    When the time is up one caller at a time may try. Whoever got True from `allow` must report `success`, `failure`, or
    `release` if the try gave no verdict. A `lone` caller looks at `open_for` instead of asking `allow`.

    Every method is a few assignments: used from several threads, the worst that a race does is to count one failure too
    few.
    """

    def __init__(
        self,
        threshold: int = 3,
        cooldown: float = 1.0,
        max_cooldown: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        lone: bool = False,
    ) -> None:
        self._threshold = threshold
        self._first_cooldown = self._cooldown = cooldown
        self._max_cooldown = max_cooldown
        self._clock = clock
        self._lone = lone
        self._failures = 0
        self._open_until: float | None = None
        self._trying = False

    @property
    def open_for(self) -> float:
        """Seconds until a call is allowed again; 0 if one is allowed now."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    @property
    def state(self) -> State:
        if self._open_until is None:
            return "closed"
        return "open" if self.open_for else "half_open"

    @property
    def available(self) -> bool:
        """Whether `allow` would return True."""
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

    def failure(self) -> bool:
        """Count a failure; True if it opened the closed breaker.

        A failure while the breaker is open, or later while no try is running, changes nothing: its call began before.
        """
        self._failures += 1
        opened = False
        if self.state == "half_open" and (self._trying or self._lone):
            self._cooldown = min(2 * self._cooldown, self._max_cooldown)
            self._open_until = self._clock() + self._cooldown
        elif self.state == "closed" and self._failures >= self._threshold:
            self._open_until = self._clock() + self._cooldown
            opened = True
        self._trying = False
        return opened

    def release(self) -> None:
        self._trying = False
