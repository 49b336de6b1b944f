"""What a pass of a target takes by its rows: what the worker said, and what passes take."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from math import log2

from protocol.worker_info import StepTime

_PASSES = 8
"""Of about a size that tell of it. More would take in how fast the machine is, which is known elsewhere."""
_UNKNOWN = 0.03, 0.1
"""Seconds of a row, and the share of it that each further one adds, of a worker that says nothing."""


class PassCurve:
    """Linear between what the worker measured at its start, and beyond; times what passes of about so many rows took
    against that. A worker measures passes over a single sequence, and of a slow model only a few rows."""

    def __init__(self, measured: Sequence[StepTime]) -> None:
        points = sorted((point.rows, point.seconds) for point in measured if point.rows > 0 and point.seconds > 0.0)
        self._rows = [rows for rows, _ in points]
        self._seconds = rising([seconds for _, seconds in points])
        self._seen: dict[int, list[float]] = {}
        """By the bits of their number: the usual rows, as a power of two, and how many times as long they take."""

    def observe(self, rows: int, seconds: float) -> None:
        """A pass, on a machine as fast as it is on the whole."""
        ratio, place = seconds / self._measured(rows), log2(max(rows, 1))
        seen = self._seen.setdefault(rows.bit_length(), [0.0, place, ratio])
        if seen[0] < _PASSES:
            seen[0] += 1.0
            seen[1] += (place - seen[1]) / seen[0]
            seen[2] += (ratio - seen[2]) / seen[0]

    def seen(self, rows: float) -> bool:
        """Whether there were passes of about so many rows, or more."""
        return any(bits >= int(rows).bit_length() for bits in self._seen)

    def at(self, rows: float) -> float:
        return self._measured(rows) * self._ratio(rows)

    def _ratio(self, rows: float) -> float:
        """Between those that were seen, and of the nearest beyond."""
        points = sorted((place, ratio) for _, place, ratio in self._seen.values())
        if not points:
            return 1.0
        place = log2(max(rows, 1.0))
        right = bisect_left(points, (place,))
        if right in (0, len(points)):
            return points[min(right, len(points) - 1)][1]
        (x0, y0), (x1, y1) = points[right - 1 : right + 1]
        return y0 + (y1 - y0) * (place - x0) / (x1 - x0)

    def _measured(self, rows: float) -> float:
        if not self._rows:
            return _UNKNOWN[0] * (1.0 + _UNKNOWN[1] * (rows - 1.0))
        if len(self._rows) == 1 or rows <= self._rows[0]:
            return self._seconds[0]
        right = min(max(bisect_left(self._rows, rows), 1), len(self._rows) - 1)
        (x0, x1), (y0, y1) = self._rows[right - 1 : right + 1], self._seconds[right - 1 : right + 1]
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)


def rising(seconds: Sequence[float]) -> list[float]:
    """Without what others on the machine added: a pass takes no longer than one of more rows."""
    return list(accumulate(reversed(seconds), min))[::-1]
