"""Whether a verification is sent while the one before it is under way: where the round trip is much of a round."""

from __future__ import annotations

from dataclasses import dataclass, field

from server.fleet.times import Average, StepTimes

_FAR = 0.05
"""The least part of a verification that must be network."""
_LOADED = 24.0
"""Rows of others in the target's passes from which on it is left alone."""
_TRIES = 20
_LEAST_GAIN = 0.01
"""Of a verification, on average."""
_REST = 128


@dataclass(slots=True)
class Depth:
    """A pair's choice, carried across requests: by what is on the way, and how often it turns out to be of use."""

    used: Average = field(default_factory=lambda: Average(0.05))
    tried: int = 0
    resting: int = 0

    def ahead(self, steps: StepTimes, rows: int) -> bool:
        """Whether to send one with a verification of so many rows."""
        far = steps.network / steps.verify(rows)
        if far < _FAR or steps.others > _LOADED:
            return False
        if self.tried < _TRIES or self.used.value * far >= _LEAST_GAIN:
            return True
        self.resting += 1
        if self.resting >= _REST:
            self.resting, self.tried = 0, _TRIES // 2
        return False

    def observe(self, used: bool) -> None:
        """What came of one."""
        self.tried += 1
        self.used.add(float(used))
