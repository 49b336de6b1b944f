"""How long a step of the target and a draft take, as measured now."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from basics.curves import rising
from protocol.worker_info import StepTime

_OUTLIER = 3.0
_LEAST_SECONDS = 1e-5
_PRESENT_WEIGHT = 0.15
_SIZE_WEIGHT = 0.03
"""Of a pass in how fast the machine is, and in what its size takes against that, which hardly changes."""
_PASS_OUTLIER = 2.0
_UNTIL_TOLD_APART = 4
"""Passes of a size that tell of the size alone."""
_Size = tuple[bool, int]
"""Whether it is plain decoding; the bits of the number of rows: those of a verification of ours, or all of the pass
in which a token is decoded plainly, which is a small one where others decode plainly, too."""


class Average:
    """An exponentially weighted mean; the first observations count in full.

    With `clip` a value above 3 times the mean counts as 3 times: for times, in which a single hiccup means little.
    """

    def __init__(self, weight: float, clip: bool = False) -> None:
        self._weight = weight
        self._clip = clip
        self.count = 0
        self.value = 0.0

    def __bool__(self) -> bool:
        return self.count > 0

    def add(self, value: float) -> None:
        self.count += 1
        if self._clip and self.count > 2:
            value = min(value, _OUTLIER * self.value)
        self.value += max(self._weight, 1.0 / self.count) * (value - self.value)


class StepTimes:
    """Seconds of a target's forward pass by our rows in it, in the pass as it is loaded now.

    The worker's own curve (seconds by rows of the whole pass) gives the shape. Whatever passes take tells how fast the
    machine is at present, which all sizes share: what is not done for a while must not look as slow as it was on a
    busier machine. Against that each size has a factor of its own. Other streams' rows in the pass shift us along the
    curve. Where `alike` requests decide as ours does, ours among them, these are taken to have as many rows as is asked
    about.
    """

    def __init__(self, curve: Sequence[StepTime]) -> None:
        points = sorted((point.rows, point.seconds) for point in curve if point.rows > 0 and point.seconds > 0.0)
        self._rows = [rows for rows, _ in points]
        self._seconds = rising([seconds for _, seconds in points])
        self._others = Average(0.2)
        self._own = Average(0.05)
        self._present = 1.0
        self._factors: dict[_Size, Average] = {}
        self._network = Average(0.1)
        self.rounds_since_plain: int | None = None
        """None until plain decoding has been measured at all."""

    def observe_verify(self, own_rows: int, pass_rows: int, worker_seconds: float, seconds: float) -> None:
        """One verification, by our rows and all rows of its pass.

        `worker_seconds` is the worker's own total, `seconds` what the caller waited.
        """
        if self.rounds_since_plain is not None:
            self.rounds_since_plain += 1
        worker_seconds = min(worker_seconds, seconds)
        self._observe((False, own_rows.bit_length()), own_rows, pass_rows, worker_seconds)
        self._network.add(max(0.0, seconds - worker_seconds))

    def observe_plain(self, pass_rows: int, seconds: float) -> None:
        """One token of plain decoding, `seconds` after the one before it."""
        self.rounds_since_plain = 0
        self._observe((True, max(1, pass_rows).bit_length()), 1, pass_rows, seconds)

    def observe_followed(self, own_rows: int, pass_rows: int, worker_seconds: float) -> None:
        """One verification that was sent before the last verdict was back: its way was not waited for."""
        self.observe_verify(own_rows, pass_rows, worker_seconds, worker_seconds + self._network.value)

    @property
    def network(self) -> float:
        """Seconds of a verification that are not the worker's own."""
        return self._network.value

    @property
    def others(self) -> float:
        """Rows of others in a pass of ours."""
        return self._others.value

    def verify(self, own_rows: float, alike: int = 1) -> float:
        """Seconds that a round's verification takes with so many rows of ours, the network included."""
        size = (False, int(own_rows).bit_length())
        return self._take(size, own_rows + self._beside(own_rows, alike)) + self._network.value

    def prices(self, draft_tokens: int, alike: int = 1) -> list[float]:
        """Seconds of a token without a draft, and of rounds that verify 1, 2, … draft tokens.

        Plain decoding is the first, not a verification of nothing: its tokens pay no round trips. None takes longer
        than what verifies more.
        """
        return rising([self.plain(alike), *(self.verify(1 + count, alike) for count in range(1, draft_tokens + 1))])

    def plain(self, alike: int = 1) -> float:
        """Seconds a token of plain decoding takes."""
        pass_rows = 1.0 + self._beside(1.0, alike)
        return self._take((True, int(pass_rows).bit_length()), pass_rows)

    def _observe(self, size: _Size, own_rows: int, pass_rows: int, seconds: float) -> None:
        others = max(0, pass_rows - own_rows)
        self._others.add(float(others))
        self._own.add(float(own_rows))
        ratio = max(seconds, _LEAST_SECONDS) / self._at(float(own_rows + others))
        factor = self._factors.setdefault(size, Average(_SIZE_WEIGHT))
        if factor.count:
            ratio = min(ratio, _PASS_OUTLIER * self._present * factor.value)
        factor.add(ratio / self._present)
        if factor.count > _UNTIL_TOLD_APART:
            self._present += _PRESENT_WEIGHT * (ratio / factor.value - self._present)

    def _beside(self, own_rows: float, alike: int) -> float:
        """Rows of others in a pass with so many of ours, if those who are `alike` have as many, too."""
        others, usual = self._others.value, max(1.0, self._own.value)
        present = min(alike - 1.0, others / usual)  # not all of them are in each of our passes
        return others - present * usual + present * own_rows

    def _take(self, size: _Size, pass_rows: float) -> float:
        return max(self._at(pass_rows) * self._present * self._factor(size), _LEAST_SECONDS)

    def _factor(self, size: _Size) -> float:
        """Of a size not seen yet: that of the nearest that was, of its kind if there is one."""
        if not self._factors:
            return 1.0
        plain, bits = size
        return self._factors[min(self._factors, key=lambda seen: (seen[0] != plain, abs(seen[1] - bits)))].value

    def _at(self, rows: float) -> float:
        """The worker's curve: linear between what it measured, and beyond."""
        if not self._rows:
            return 0.03 * (1.0 + 0.1 * (rows - 1.0))
        if len(self._rows) == 1 or rows <= self._rows[0]:
            return self._seconds[0]
        right = min(max(bisect_left(self._rows, rows), 1), len(self._rows) - 1)
        (x0, x1), (y0, y1) = self._rows[right - 1 : right + 1], self._seconds[right - 1 : right + 1]
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)


class DraftTimes:
    """Seconds of a draft call by γ and N: for each N a line of its own, since further candidates take passes of theirs.

    The drafter's own measurement of one token is the slope until calls of different γ have been seen. It is that of a
    pass; where several tokens are drawn in one, as by CUDA graphs, a token takes a tenth of it.
    """

    def __init__(self, curve: Sequence[StepTime], like: DraftTimes | None = None) -> None:
        """`like`: calls that are known to take about as long, and stand for these until there are some."""
        self._claimed = min((point.seconds for point in curve if point.seconds > 0.0), default=0.0)
        self._like = like
        self._lines: dict[int, _Line] = {}

    def measured(self, num_candidates: int = 1) -> bool:
        """Whether a draft of so many candidates has been seen."""
        return num_candidates in self._lines

    def observe(self, draft_tokens: int, seconds: float, num_candidates: int = 1) -> None:
        """One call: γ, less what of it was prepared, and N as asked for, and how long the answer took."""
        line = self._lines.setdefault(num_candidates, _Line())
        line.observe(draft_tokens, seconds, self._expected_slope(num_candidates))

    def draft(self, draft_tokens: float, num_candidates: int = 1) -> float:
        """Seconds that a call is expected to take; of an N not seen yet: those of the nearest that was."""
        line = self._line(num_candidates)
        if line is not None:
            return line.at(draft_tokens, self._expected_slope(num_candidates))
        return (
            self._like.draft(draft_tokens, num_candidates) if self._like is not None else self._claimed * draft_tokens
        )

    def _line(self, num_candidates: int) -> _Line | None:
        if not self._lines:
            return None
        return self._lines[min(self._lines, key=lambda seen: abs(seen - num_candidates))]

    def _expected_slope(self, num_candidates: int) -> float:
        """What a token is expected to add, as long as these calls do not tell."""
        like = self._like
        line = like._line(num_candidates) if like is not None else None
        if like is None or line is None:
            return self._claimed
        return line.slope(like._expected_slope(num_candidates))


class _Line:
    """fixed + γ · per_token, by least squares over what was seen, older calls fading."""

    _FADING = 0.95
    _PRIOR_WEIGHT = 0.5
    """Of the expected slope: that of two calls whose γ differ by one."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, x: int, seconds: float, expected_slope: float) -> None:
        if self._weight > 0.0:
            seconds = min(seconds, _OUTLIER * self.at(x, expected_slope) + 0.001)
        self._weight = self._weight * self._FADING + 1.0
        self._x += (x - self._x) / self._weight
        self._y += (seconds - self._y) / self._weight
        self._xx += (x * x - self._xx) / self._weight
        self._xy += (x * seconds - self._xy) / self._weight

    def at(self, x: float, expected_slope: float) -> float:
        return self._y + self.slope(expected_slope) * (x - self._x)

    def slope(self, expected: float) -> float:
        """Seconds that a token adds, from 0 to all that calls take."""
        spread = self._weight * max(0.0, self._xx - self._x * self._x)
        together = self._weight * (self._xy - self._x * self._y)
        slope = (together + self._PRIOR_WEIGHT * expected) / (spread + self._PRIOR_WEIGHT)
        return min(max(slope, 0.0), self._y / self._x) if self._x > 0.0 else expected
