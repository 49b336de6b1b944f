"""How many verifications are under way at a time: more than one where the round trip is much of a round."""

from __future__ import annotations

from dataclasses import dataclass, field

from basics.names import MAX_UNDER_WAY
from server.fleet.times import Average
from server.rounds.adaptive.round import Times

_FAR = 0.05
"""The least part of a verification that must be network."""
_LOADED = 24.0
"""Rows of others in the target's passes from which on it is left alone."""
_TRIES = 20
_LEAST_GAIN = 0.01
"""Of a verification, on average."""
_REST = 128


@dataclass(slots=True)
class _Level:
    """Those sent while so many others are under way: how often they turn out to be of use."""

    used: Average = field(default_factory=lambda: Average(0.05))
    tried: int = 0
    resting: int = 0

    def chance(self, at_most: float) -> float:
        """As long as it is not known: as good as those sent with one less under way, `at_most`."""
        return min(self.used.value, at_most) if self.tried >= _TRIES else at_most

    def worth(self, gain: float) -> bool:
        """Whether to send one that hides so much of a verification on average; now and then all the same."""
        if gain >= _LEAST_GAIN:
            return True
        self.resting += 1
        if self.resting >= _REST:
            self.resting, self.tried = 0, _TRIES // 2
        return False


@dataclass(slots=True)
class Depth:
    """A pair's choice, carried across requests: by what is on the way, and how often it turns out to be of use."""

    levels: list[_Level] = field(default_factory=lambda: [_Level() for _ in range(MAX_UNDER_WAY - 1)])

    def under_way(self, times: Times, draft_tokens: int) -> int:
        """At most so many verifications of such drafts at a time; 1: none is sent before the last verdict is back.

        Where only one is in flight, the draft worker is told of it when the verdict before is back; so the target
        begins two in the time in which one goes there and back and the next is drafted, if its own passes do not take
        longer. With n under way it begins n while one goes there and back.
        """
        steps, drafting = times.steps, times.drafts.draft(1 + draft_tokens)
        whole, network = steps.verify(1 + draft_tokens), steps.network
        if network / whole < _FAR or steps.others > _LOADED:
            return 1
        first, *deeper = self.levels
        chance = first.chance(1.0)
        if not first.worth(chance * network / whole):
            return 1
        step = whole - network
        every = max(step, (whole + drafting) / 2)
        for number, level in enumerate(deeper, 3):
            chance, before, every = level.chance(chance), every, max(step, drafting, whole / number)
            if not level.worth(chance * (before - every) / whole):
                return number - 1
        return 1 + len(self.levels)

    def observe(self, used: bool, others: int) -> None:
        """What came of one that was sent while `others` were under way."""
        level = self.levels[others - 1]
        level.tried += 1
        level.used.add(float(used))
