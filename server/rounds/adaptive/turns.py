"""Which of two kinds of rounds is faster: both by turns, and by what they take."""

from __future__ import annotations

from dataclasses import dataclass, field

from basics.names import MAX_DRAFT_TOKENS
from server.rounds.adaptive.acceptance import Acceptance

_FADING = 0.97
_BLOCK = 6
"""Rounds of one kind in a row."""
_LEAST_ROUNDS = 15
"""Of either kind, before one is preferred."""
_FEW_ROUNDS = 5.0
_CLEARLY = 0.5
"""Over the square root of how many rounds there were of either kind: so much faster one has to be until there are as
many as that. What a round takes differs by a third, by whether its draft was there."""
_MARGIN = 1.01
"""The second kind has to be this much faster: it takes more of the machines."""
_FIRST_REST = 64
_LONGEST_REST = 1024


@dataclass(slots=True)
class _Rounds:
    """Rounds of one kind and one make, older ones fading."""

    weight: float = 0.0
    seconds: float = 0.0
    asked: dict[int, float] = field(default_factory=dict)
    """How many had this γ."""

    def fade(self, fading: float) -> None:
        self.weight *= fading
        self.seconds *= fading
        for number in self.asked:
            self.asked[number] *= fading

    def add(self, asked: int, seconds: float, weight: float) -> None:
        self.weight += weight
        self.seconds += weight * seconds
        self.asked[asked] = self.asked.get(asked, 0.0) + weight

    def tokens(self, expected: list[float]) -> float:
        return sum(weight * expected[asked] for asked, weight in self.asked.items())


@dataclass(slots=True)
class _Kind:
    """Rounds of one kind, by whether a model drew any of the draft."""

    makes: dict[bool, _Rounds] = field(default_factory=lambda: {True: _Rounds(), False: _Rounds()})

    @property
    def rounds(self) -> float:
        return sum(rounds.weight for rounds in self.makes.values())

    def add(self, drawn: bool, asked: int, seconds: float, weight: float) -> None:
        for rounds in self.makes.values():
            rounds.fade(_FADING**weight)
        self.makes[drawn].add(asked, seconds, weight)


@dataclass(slots=True)
class Turns:
    """Blocks of both kinds (False, True) by turns at first, then the better kind, and a block of the other after a rest
    that doubles each time that it loses.

    Neither what a γ brings nor how often there is something to copy depends on the kind. So a round counts as the
    tokens that are to be expected of its γ by rounds of both kinds, and drafts that were copied, which bring 1 to 33,
    have the same share in both: what decides is what rounds take, and lucky ones do not matter.
    """

    streams: int = 1
    """Requests at a time. If what is done for one costs the others, too, all of them are of one kind, for blocks as
    much longer, and rounds that began beside those of the other kind say nothing. Those of one pass tell the same, so
    that each counts as a part of a round."""
    current: bool = False
    rest: int = _FIRST_REST
    """Rounds of the better kind before the next block of the other."""
    _kinds: dict[bool, _Kind] = field(default_factory=lambda: {True: _Kind(), False: _Kind()})
    _acceptance: dict[bool, Acceptance] = field(
        default_factory=lambda: {drawn: Acceptance(fading=0.98, strength=2.0) for drawn in (True, False)}
    )
    _in_block: int = 0

    @property
    def pays(self) -> bool | None:
        """Whether the second kind is better; None while unknown."""
        rounds = min(kind.rounds for kind in self._kinds.values())
        if rounds < _FEW_ROUNDS:
            return None
        second, first = self._pace(True), self._pace(False)
        if rounds < _LEAST_ROUNDS and max(second, first) < (1.0 + _CLEARLY / rounds**0.5) * min(second, first):
            return None
        return second > _MARGIN * first

    def observe(self, kind: bool, asked: int, accepted: int, seconds: float, drawn: bool = True) -> None:
        """A round of γ `asked`, and whether any of its draft was `drawn` by a model.

        Rounds between the kinds must not be passed.
        """
        self._acceptance[drawn].observe(asked, asked, accepted)
        beside = self.streams if self.streams > 1 else 0
        if not beside or (kind == self.current and self._in_block >= beside):
            self._kinds[kind].add(drawn, asked, seconds, 1.0 / max(1, self.streams))
        if kind != self.current:
            return
        self._in_block += 1
        preferred, block = self.pays, _BLOCK * self.streams + beside
        if preferred is None:
            if self._in_block >= block:
                self._turn()
        elif kind == preferred:
            if self._in_block >= self.rest * self.streams:
                self._turn()
        elif self._in_block >= block:
            self.rest = min(2 * self.rest, _LONGEST_REST)
            self._turn()

    def _turn(self) -> None:
        self.current, self._in_block = not self.current, 0

    def _pace(self, kind: bool) -> float:
        """Tokens a second to be expected."""
        tokens = seconds = 0.0
        for drawn, acceptance in self._acceptance.items():
            own, other = (self._kinds[one].makes[drawn] for one in (kind, not kind))
            share = own.weight + other.weight
            if not share:
                continue
            expected = acceptance.expected_tokens(MAX_DRAFT_TOKENS)
            came = own.tokens(expected)
            # As one round more that is like those of both kinds: so what one of them never had decides nothing.
            weight = share / (own.weight + 1.0)
            tokens += weight * (came + (came + other.tokens(expected)) / share)
            seconds += weight * (own.seconds + (own.seconds + other.seconds) / share)
        return tokens / max(seconds, 1e-9)
