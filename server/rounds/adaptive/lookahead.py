"""Whether a pair's draft worker is asked to look ahead: decided by the times of rounds with and without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from basics.names import OnOffAuto
from server.fleet.times import Average

_FADING = 0.97
_BLOCK = 6
"""Rounds of one kind in a row."""
_LEAST_ROUNDS = 15
"""Of either kind, before one is preferred."""
_FEW_ROUNDS = 5.0
_CLEARLY = 1.3
"""So much faster one has to be to be preferred after few rounds."""
_MARGIN = 1.01
"""Lookahead has to be this much faster, since it takes compute of the draft machine."""
_PLAIN_TOKENS = 4
"""A stretch of plain decoding counts as so many rounds without lookahead, of a token each."""
_FIRST_REST = 64
_LONGEST_REST = 1024
_MANY = 3
"""Requests of a pair at a time whose lookahead is decided for all of them together."""


@dataclass(slots=True)
class _Kind:
    """Rounds of one kind, older ones fading."""

    rounds: float = 0.0
    seconds: float = 0.0
    asked: dict[int, float] = field(default_factory=dict)

    def add(self, asked: int, seconds: float) -> None:
        self.rounds = self.rounds * _FADING + 1.0
        self.seconds = self.seconds * _FADING + seconds
        for number in self.asked:
            self.asked[number] *= _FADING
        self.asked[asked] = self.asked.get(asked, 0.0) + 1.0


@dataclass(slots=True)
class LookaheadChoice:
    """A pair's choice, carried across requests: blocks of both kinds by turns at first, then the better kind, and a
    block of the other after a rest that doubles each time that it loses.

    What a γ brings does not depend on lookahead. So a round counts as the average tokens of its γ over both kinds: a
    lucky draft does not matter.
    """

    mode: OnOffAuto = "auto"
    streams: int = 1
    """Requests at a time. What is prepared for one costs the others, too: so all of them are of one kind, for blocks as
    much longer, and rounds that began beside those of the other kind say nothing."""
    _kinds: dict[bool, _Kind] = field(default_factory=lambda: {True: _Kind(), False: _Kind()})
    _brought: dict[int, Average] = field(default_factory=dict)
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
        if rounds < _LEAST_ROUNDS and max(ahead, without) < _CLEARLY * min(ahead, without):
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
                self.observe(False, 0, 1, seconds)

    def observe(self, ahead: bool, asked: int, emitted: int, seconds: float) -> None:
        """A round of γ `asked`: its draft was prepared and its verification ran beside lookahead, or neither.

        Rounds between the kinds must not be passed.
        """
        self._brought.setdefault(asked, Average(0.02)).add(emitted)
        beside = self.streams if self.streams > 1 else 0
        if not beside or (ahead == self._current and self._in_block >= beside):
            self._kinds[ahead].add(asked, seconds)
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
        kind = self._kinds[ahead]
        tokens = sum(weight * self._brought[asked].value for asked, weight in kind.asked.items())
        return tokens / max(kind.seconds, 1e-9)


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
