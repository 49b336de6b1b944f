"""A circuit breaker: a draft worker that fails a few times in a row is left alone for a while."""

from __future__ import annotations

import time
from collections.abc import Callable


class Breaker:
    """Opens after `threshold` failures in a row, for `cooldown` seconds; each failure at the next try doubles them.

    The engine's step and the thread beside it both report here: every method is a few assignments, and the worst that
    a race does is to count one failure too few.
    """

    def __init__(
        self,
        threshold: int = 3,
        cooldown: float = 0.5,
        max_cooldown: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threshold = threshold
        self._first_cooldown = self._cooldown = cooldown
        self._max_cooldown = max_cooldown
        self._clock = clock
        self._failures = 0
        self._open_until: float | None = None

    @property
    def open_for(self) -> float:
        """Seconds until the worker may be tried; 0 where it may now."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def success(self) -> None:
        self._failures = 0
        self._open_until = None
        self._cooldown = self._first_cooldown

    def failure(self) -> bool:
        """Whether the breaker opened because of it."""
        self._failures += 1
        if self._open_until is not None:
            self._cooldown = min(2 * self._cooldown, self._max_cooldown)
        elif self._failures < self._threshold:
            return False
        opened = self._open_until is None
        self._open_until = self._clock() + self._cooldown
        return opened
