"""What drafts of each kind have earned: how likely their token at each position is right, given those before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draft_worker.drafter import STATED

Kind = tuple[str, int]
"""A drafter's source, and the class of the match that it drafts from; a model's is GREEDY or DRAWN."""

GREEDY, DRAWN = 0, 8
"""A model agrees with its target more often where both take the likeliest token."""
_FADING = 0.97
_LESS_WRONG = 0.78
"""A copy that was right so far is the less likely to be wrong, the longer: from one group of positions to the next 0.78
times as likely on code and prose, 0.63 on edited files (this project's own, prompt lookup, matches of 2 to 8)."""
OTHERS_STRENGTH = 3.0
"""Tokens that what other sessions earned counts as much as in a new one: one that quotes its prompt says little of one
that doesn't. With 6, `auto` was 0.9 times as fast as the model alone on code at temperature 0.7 after quotations."""
_FIRST_OF_CLASS = (0.55, 0.35, 0.45, 0.6, 0.75, 0.85, 0.92, 0.99, 0.55)


def match_class(match: int) -> int:
    """1: up to two tokens, 2: three, 3: four or five, 4: up to eight, 5: up to 16, 6: more, 7: STATED."""
    return next((number for number, most in enumerate((2, 3, 5, 8, 16, STATED - 1), start=1) if match <= most), 7)


def _group(position: int) -> int:
    """Positions that share an estimate: 0, 1, 2, 3, 4 to 7, 8 to 15, 16 and up."""
    return position if position < 4 else position.bit_length() + 1


_GROUPS = _group(31) + 1


@dataclass(slots=True)
class _Counts:
    reached: list[float] = field(default_factory=lambda: [0.0] * _GROUPS)
    right: list[float] = field(default_factory=lambda: [0.0] * _GROUPS)


class Yields:
    """Beta posteriors by kind and group of positions, older drafts fading.

    The prior of a group is `prior`'s estimate of it, or without one the rate of the group before it, of a copy a better
    one; it counts as much as `strength` tokens.
    """

    def __init__(self, strength: float, prior: Yields | None = None) -> None:
        self._strength = strength
        self._prior = prior
        self._counts: dict[Kind, _Counts] = {}

    def observe(self, kind: Kind, draft: Sequence[int], text: Sequence[int]) -> None:
        """A draft of this kind, and the text that came in its place: what lies beyond either says nothing."""
        if self._prior is not None:
            self._prior.observe(kind, draft, text)
        counts = self._counts.setdefault(kind, _Counts())
        for position, (drafted, token_id) in enumerate(zip(draft, text, strict=False)):
            group, right = _group(position), drafted == token_id
            counts.reached[group] = counts.reached[group] * _FADING + 1.0
            counts.right[group] = counts.right[group] * _FADING + right
            if not right:
                return

    def supposing(self, drafts: Sequence[tuple[Kind, Sequence[int]]], text: Sequence[int]) -> Yields:
        """What these would be once all these drafts were observed with this text in their place; they stay the same."""
        kinds = {kind for kind, _ in drafts}
        found = self._apart(kinds)
        for kind, draft in drafts:
            found.observe(kind, draft, text)
        return found

    def _apart(self, kinds: set[Kind]) -> Yields:
        """The same, of which what is known of these kinds may change alone."""
        found = Yields(self._strength, self._prior._apart(kinds) if self._prior is not None else None)
        found._counts = dict(self._counts)
        for kind in kinds & self._counts.keys():
            counts = self._counts[kind]
            found._counts[kind] = _Counts(list(counts.reached), list(counts.right))
        return found

    def chances(self, kind: Kind, count: int) -> list[float]:
        """That the first 1, 2, …, `count` tokens of such a draft are all right."""
        rates = self._rates(kind)
        chances, chance = [], 1.0
        for position in range(count):
            chance *= rates[_group(position)]
            chances.append(chance)
        return chances

    def _rates(self, kind: Kind) -> list[float]:
        priors = self._prior._rates(kind) if self._prior is not None else None
        counts = self._counts.get(kind)
        if counts is None and priors is not None:
            return priors
        counts = counts or _Counts()
        rates: list[float] = []
        for group in range(_GROUPS):
            if priors is not None:
                mean = priors[group]
            else:
                less = 1.0 if kind[1] in (GREEDY, DRAWN) else _LESS_WRONG
                mean = 1.0 - less * (1.0 - rates[-1]) if rates else _FIRST_OF_CLASS[kind[1]]
            rates.append((counts.right[group] + self._strength * mean) / (counts.reached[group] + self._strength))
        return rates
