"""How long a step may wait for drafts."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable

_SHARE = 0.5
_LEAST = 0.002
_UNMEASURED = 0.05
_ENOUGH = 3


class Pace:
    """Half of what the engine's steps lately took, unless a deadline was set.

    However long that is: if steps are slow, the draft worker often is on as slow a machine, and a bound below what
    it needs would cost the wait in every step and never bring a draft.
    """

    def __init__(self, deadline_ms: float | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._fixed = deadline_ms / 1000 if deadline_ms is not None else None
        self._clock = clock
        self._began: float | None = None
        self._steps: deque[float] = deque(maxlen=16)

    def step_begins(self) -> None:
        """The proposer returns; what follows until the next call is the engine's."""
        self._began = self._clock()

    def step_ended(self, counts: bool) -> None:
        """The engine calls again. The time `counts` if the engine continued at once, with an ordinary step."""
        if self._began is not None and counts:
            self._steps.append(self._clock() - self._began)

    @property
    def seconds(self) -> float:
        if self._fixed is not None:
            return self._fixed
        if len(self._steps) < _ENOUGH:  # the first ones include compilation
            return _UNMEASURED
        return max(_LEAST, _SHARE * statistics.median(self._steps))
