"""How often a draft is there before it is asked for, and how much of it (docs/lookahead.md)."""

from __future__ import annotations

from dataclasses import dataclass, field

from server.fleet.times import Average

_FADING = 0.97
_FIRST_CHANCE = 0.3
_STRENGTH = 4.0
"""Rounds that the first guess counts as much as."""


@dataclass(slots=True)
class Foreseen:
    """Of a pair's rounds after lookahead, carried across requests; older ones fade."""

    _rounds: float = 0.0
    _hits: float = 0.0
    _tokens: Average = field(default_factory=lambda: Average(0.1))

    def observe(self, hit: bool, tokens: int | None) -> None:
        """Whether a draft's first token was there, or more; and how many were, if that is known."""
        self._rounds = self._rounds * _FADING + 1.0
        self._hits = self._hits * _FADING + hit
        if hit and tokens is not None:
            self._tokens.add(tokens)

    @property
    def chance(self) -> float:
        return (self._hits + _STRENGTH * _FIRST_CHANCE) / (self._rounds + _STRENGTH)

    @property
    def tokens(self) -> float:
        """How many tokens there are, if there are any; 0 as long as none were."""
        return self._tokens.value
