"""How long a step may wait for drafts."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable

_SHARE = 0.5
_BOUNDS = (0.002, 0.25)
_UNMEASURED = 0.05


class Pace:
    """Half of what the engine's steps lately took, unless a deadline was set."""

    def __init__(self, deadline_ms: float | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._fixed = deadline_ms / 1000 if deadline_ms is not None else None
        self._clock = clock
        self._began: float | None = None
        self._steps: deque[float] = deque(maxlen=16)

    def step_begins(self) -> None:
        """The proposer returns; what follows until the next call is the engine's."""
        self._began = self._clock()

    def step_ended(self) -> None:
        if self._began is not None:
            self._steps.append(self._clock() - self._began)

    @property
    def seconds(self) -> float:
        if self._fixed is not None:
            return self._fixed
        if not self._steps:
            return _UNMEASURED
        return min(max(_BOUNDS[0], _SHARE * statistics.median(self._steps)), _BOUNDS[1])
