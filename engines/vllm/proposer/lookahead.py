"""Whether the draft worker is asked to look ahead while vLLM runs a step, decided by what steps bring."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from basics.names import OnOffAuto

logger = logging.getLogger("vllm.tandem")

Way = Literal["off", "ahead", "there"]
"""`ahead`: what is prepared is used, what is not is drawn. `there`: of what is not only one token is drawn, so that no
row of the batch waits for a whole draft of another one."""

_BLOCK = 8
"""Steps of one way in a row, while it is tried. The first does not count: its drafts follow from the way before."""
_LEAST_STEPS = 11.0
"""Of each way, before one is preferred: two blocks, the older fading."""
_FEW_STEPS = 6.0
_CLEARLY = 1.3
"""So much faster one has to be than all others to be preferred after few steps."""
_FADING = 0.97
_MARGIN = 1.01
"""Lookahead has to be this much faster, since it takes compute of the draft worker."""
_MANY_ROWS = 4
_FIRST_REST = 64
_LONGEST_REST = 1024


@dataclass(slots=True)
class _Steps:
    """Of one way, older ones fading."""

    count: float = 0.0
    seconds: float = 0.0
    drafted: dict[int, float] = field(default_factory=dict)
    """How many rows had so many drafted tokens."""

    def add(self, drafted: Sequence[int], seconds: float) -> None:
        self.count = self.count * _FADING + 1.0
        self.seconds = self.seconds * _FADING + seconds
        for length in self.drafted:
            self.drafted[length] *= _FADING
        for length in drafted:
            self.drafted[length] = self.drafted.get(length, 0.0) + 1.0


class LookaheadChoice:
    """For batches of about one size: each way by turns at first, then the one that brings most tokens a second, and a
    block of another after a rest that doubles each time that it loses.

    A draft of a length counts as what such drafts bring on average: a lucky one does not matter.
    """

    def __init__(self, ways: Sequence[Way]) -> None:
        self._ways = list(ways)
        self._steps = {way: _Steps() for way in ways}
        self._brought: dict[tuple[bool, int], tuple[float, float]] = {}
        self.way = self._ways[0]
        self._tried = 0
        self._in_block = 0
        self._preferred: Way | None = None
        self._rest = _FIRST_REST

    def observe(self, drafted: Sequence[int], emitted: Sequence[int], seconds: float) -> None:
        """An ordinary step of the way: each row's drafted tokens, those that came of them, and what it took in all."""
        way = self.way
        for length, count in zip(drafted, emitted, strict=True):
            weight, mean = self._brought.get((way == "there", length), (0.0, 0.0))
            weight = weight * 0.98 + 1.0
            self._brought[way == "there", length] = weight, mean + (count - mean) / weight
        self._in_block += 1
        if len(self._ways) == 1:
            return
        if self._in_block > 1:
            self._steps[way].add(drafted, seconds)
        if self._in_block % _BLOCK:
            return
        best = self._best()
        if best is not None and best != self._preferred:
            self._preferred, self._rest = best, _FIRST_REST
            told = ", ".join(f"{one} {self._pace(one):.1f}" for one in self._ways)
            logger.info("Tandem: lookahead is %s (tokens a second: %s)", best, told)
            self._begin(best)
        elif way != self._preferred and self._preferred is not None:
            self._rest = min(2 * self._rest, _LONGEST_REST)
            self._begin(self._preferred)
        elif self._preferred is None or self._in_block >= self._rest:
            others = [one for one in self._ways if one != self._preferred]
            self._tried += 1
            self._begin(others[self._tried % len(others)])

    def _begin(self, way: Way) -> None:
        self.way, self._in_block = way, 0

    def _best(self) -> Way | None:
        """None while too little is known."""
        fewest = min(steps.count for steps in self._steps.values())
        if fewest < _FEW_STEPS:
            return None
        paces = {way: self._pace(way) / (1.0 if way == "off" else _MARGIN) for way in self._ways}
        best = max(self._ways, key=lambda way: paces[way])
        clear = all(paces[best] > _CLEARLY * pace for way, pace in paces.items() if way != best)
        return best if clear or fewest >= _LEAST_STEPS else None

    def _pace(self, way: Way) -> float:
        steps = self._steps[way]
        tokens = sum(count * self._brought[way == "there", length][1] for length, count in steps.drafted.items())
        return tokens / max(steps.seconds, 1e-9)


class Lookahead:
    """The choices of one engine, by the size of its batches: a power of two."""

    def __init__(self, mode: OnOffAuto) -> None:
        self._mode = mode
        self._choices: dict[tuple[int, bool, bool], LookaheadChoice] = {}

    def choice(self, rows: int, able: bool, longer: bool) -> LookaheadChoice:
        """For a batch of so many rows. `able`: the draft worker looks ahead, `longer`: drafts that are there may be
        longer than others."""
        ways: list[Way] = ["off"] if self._mode != "on" or not able else []
        if self._mode != "off" and able:
            # Of many rows one is always without its draft, for which all would wait.
            ways += ["ahead"] if not longer else ["there"] if rows >= _MANY_ROWS else ["ahead", "there"]
        return self._choices.setdefault((rows.bit_length(), able, longer), LookaheadChoice(ways))
