"""Whether a pair's draft worker is asked to look ahead: decided by the times of rounds with and without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from basics.names import MAX_DRAFT_TOKENS, OnOffAuto
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
"""Lookahead has to be this much faster, since it takes compute of the draft machine."""
_PLAIN_TOKENS = 4
"""A stretch of plain decoding counts as so many rounds without lookahead, of a token each."""
_FIRST_REST = 64
_LONGEST_REST = 1024
_MANY = 3
"""Requests of a pair at a time whose lookahead is decided for all of them together."""


@dataclass(slots=True)
class _Rounds:
    """Rounds of one kind and one make, older ones fading."""

    weight: float = 0.0
    seconds: float = 0.0
    asked: dict[int, float] = field(default_factory=dict)
    """How many had this γ."""

    def fade(self) -> None:
        self.weight *= _FADING
        self.seconds *= _FADING
        for number in self.asked:
            self.asked[number] *= _FADING

    def add(self, asked: int, seconds: float) -> None:
        self.weight += 1.0
        self.seconds += seconds
        self.asked[asked] = self.asked.get(asked, 0.0) + 1.0

    def tokens(self, expected: list[float]) -> float:
        return sum(weight * expected[asked] for asked, weight in self.asked.items())


@dataclass(slots=True)
class _Kind:
    """Rounds of one kind, by whether a model drew any of the draft."""

    makes: dict[bool, _Rounds] = field(default_factory=lambda: {True: _Rounds(), False: _Rounds()})

    @property
    def rounds(self) -> float:
        return sum(rounds.weight for rounds in self.makes.values())

    def add(self, drawn: bool, asked: int, seconds: float) -> None:
        for rounds in self.makes.values():
            rounds.fade()
        self.makes[drawn].add(asked, seconds)


@dataclass(slots=True)
class LookaheadChoice:
    """A pair's choice, carried across requests: blocks of both kinds by turns at first, then the better kind, and a
    block of the other after a rest that doubles each time that it loses.

    Neither what a γ brings nor how often there is something to copy depends on lookahead. So a round counts as the
    tokens that are to be expected of its γ by rounds of both kinds, and drafts that were copied, which bring 1 to 33,
    have the same share in both: what decides is what rounds take, and lucky ones do not matter.
    """

    mode: OnOffAuto = "auto"
    streams: int = 1
    """Requests at a time. What is prepared for one costs the others, too: so all of them are of one kind, for blocks as
    much longer, and rounds that began beside those of the other kind say nothing."""
    _kinds: dict[bool, _Kind] = field(default_factory=lambda: {True: _Kind(), False: _Kind()})
    _acceptance: dict[bool, Acceptance] = field(
        default_factory=lambda: {drawn: Acceptance(fading=0.98, strength=2.0) for drawn in (True, False)}
    )
    _current: bool = False
    _in_block: int = 0
    _rest: int = _FIRST_REST

    def next(self) -> bool:
        """Whether to ask for it with the next draft."""
        return self._current if self.mode == "auto" else self.mode == "on"

    @property
    def pays(self) -> bool | None:
        """Whether lookahead pays; None while unknown."""
        rounds = min(kind.rounds for kind in self._kinds.values())
        if rounds < _FEW_ROUNDS:
            return None
        ahead, without = self._pace(True), self._pace(False)
        if rounds < _LEAST_ROUNDS and max(ahead, without) < (1.0 + _CLEARLY / rounds**0.5) * min(ahead, without):
            return None
        return ahead > _MARGIN * without

    @property
    def trying(self) -> bool:
        """Whether it is lookahead's turn though it is not known to pay."""
        return self.mode == "auto" and self._current and self.pays is not True

    def observe_plain(self, seconds: float) -> None:
        """Tokens decoded plainly, each of which took so long, since rounds without lookahead would not pay."""
        for _ in range(_PLAIN_TOKENS):
            if not self._current:
                self.observe(False, 0, 0, seconds)

    def observe(self, ahead: bool, asked: int, accepted: int, seconds: float, drawn: bool = True) -> None:
        """A round of γ `asked`: its draft was prepared and its verification ran beside lookahead, or neither.

        `drawn`: by a model, at least in part.

        Rounds between the kinds must not be passed.
        """
        self._acceptance[drawn].observe(asked, asked, accepted)
        beside = self.streams if self.streams > 1 else 0
        if not beside or (ahead == self._current and self._in_block >= beside):
            self._kinds[ahead].add(drawn, asked, seconds)
        if ahead != self._current:
            return
        self._in_block += 1
        preferred, block = self.pays, _BLOCK * self.streams + beside
        if preferred is None:
            if self._in_block >= block:
                self._turn()
        elif ahead == preferred:
            if self._in_block >= self._rest * self.streams:
                self._turn()
        elif self._in_block >= block:
            self._rest = min(2 * self._rest, _LONGEST_REST)
            self._turn()

    def _turn(self) -> None:
        self._current, self._in_block = not self._current, 0

    def _pace(self, ahead: bool) -> float:
        """Tokens a second to be expected."""
        tokens = seconds = 0.0
        for drawn, acceptance in self._acceptance.items():
            own, other = (self._kinds[kind].makes[drawn] for kind in (ahead, not ahead))
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


@dataclass(slots=True)
class SharedLookahead:
    """A pair's choice for one request at a time, and that for many: these are decided by times with `on`, too."""

    mode: OnOffAuto = "auto"
    streams: int = 0
    """Requests of the pair that are being served."""
    _alone: LookaheadChoice = field(init=False)
    _among_many: LookaheadChoice = field(init=False)

    def __post_init__(self) -> None:
        self._alone = LookaheadChoice(self.mode)
        self._among_many = LookaheadChoice("off" if self.mode == "off" else "auto")

    @property
    def choice(self) -> LookaheadChoice:
        """The one that counts now."""
        if self.streams < _MANY:
            return self._alone
        self._among_many.streams = self.streams
        return self._among_many

    @contextmanager
    def serving(self) -> Iterator[None]:
        """One more request."""
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1
