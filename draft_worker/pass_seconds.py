"""What a pass of the draft model takes by its rows, as measured at start and now."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from draft_worker.plans import DrawSeconds
from protocol.worker_info import StepTime

_SMOOTHING = 0.1
_OUTLIER = 3.0


class PassSeconds:
    """The engine's own curve, linear between what it measured, scaled by what passes really take: those of each size
    (a power of two) by their own factor, sizes not seen yet by that of all. Without a curve, a straight line.
    """

    def __init__(self, curve: Sequence[StepTime]) -> None:
        points = sorted((point.rows, point.seconds) for point in curve if point.rows > 0 and point.seconds > 0.0)
        self._rows = [rows for rows, _ in points]
        self._seconds = [seconds for _, seconds in points]
        self._line = DrawSeconds()
        self._all = 1.0
        self._by_size: dict[int, float] = {}

    def observe(self, rows: int, seconds: float) -> None:
        """A pass; one that took more than three times what was expected counts as that."""
        if not self._rows:
            self._line.observe(rows, seconds)
            return
        size, at = rows.bit_length(), self._at(rows)
        known = self._by_size.get(size, self._all)
        found = min(seconds / at, _OUTLIER * known)
        self._all += _SMOOTHING * (found - self._all)
        self._by_size[size] = known + _SMOOTHING * (found - known)

    def of(self, rows: int) -> float:
        if not self._rows:
            return self._line.of(rows)
        return self._at(rows) * self._by_size.get(rows.bit_length(), self._all)

    def _at(self, rows: int) -> float:
        if len(self._rows) == 1 or rows <= self._rows[0]:
            return self._seconds[0]
        right = min(max(bisect_left(self._rows, rows), 1), len(self._rows) - 1)
        (x0, x1), (y0, y1) = self._rows[right - 1 : right + 1], self._seconds[right - 1 : right + 1]
        return max(y0 + (y1 - y0) * (rows - x0) / (x1 - x0), self._seconds[0] / 2)
