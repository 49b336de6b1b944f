"""Whether a pair's draft worker is asked to look ahead: decided by the times of rounds with and without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from basics.names import OnOffAuto
from server.rounds.adaptive.turns import Turns

_PLAIN_TOKENS = 4
"""A stretch of plain decoding counts as so many rounds without lookahead, of a token each."""
_MANY = 3
"""Requests of a pair at a time whose lookahead is decided for all of them together."""


@dataclass(slots=True)
class LookaheadChoice(Turns):
    """A pair's choice, carried across requests: a round with lookahead is one whose draft was prepared and whose
    verification ran beside lookahead, a round without it neither."""

    mode: OnOffAuto = "auto"

    def next(self) -> bool:
        """Whether to ask for it with the next draft."""
        return self.current if self.mode == "auto" else self.mode == "on"

    @property
    def trying(self) -> bool:
        """Whether it is lookahead's turn though it is not known to pay."""
        return self.mode == "auto" and self.current and self.pays is not True

    def observe_plain(self, seconds: float) -> None:
        """Tokens decoded plainly, each of which took so long, since rounds without lookahead would not pay."""
        for _ in range(_PLAIN_TOKENS):
            if not self.current:
                self.observe(False, 0, 0, seconds)


@dataclass(slots=True)
class SharedLookahead:
    """A pair's choices for one request at a time, for two, and for many: these are decided by times with `on`, too.

    Apart, since rounds of one kind that were quicker beside nobody would be held against the other kind's beside
    others, which are not tried again for long.
    """

    mode: OnOffAuto = "auto"
    streams: int = 0
    """Requests of the pair that are being served."""
    _alone: LookaheadChoice = field(init=False)
    _beside_another: LookaheadChoice = field(init=False)
    _among_many: LookaheadChoice = field(init=False)

    def __post_init__(self) -> None:
        self._alone, self._beside_another = LookaheadChoice(mode=self.mode), LookaheadChoice(mode=self.mode)
        self._among_many = LookaheadChoice(mode="off" if self.mode == "off" else "auto")

    @property
    def choice(self) -> LookaheadChoice:
        """The one that counts now."""
        if self.streams >= _MANY:
            return self._among_many
        return self._alone if self.streams < 2 else self._beside_another

    @contextmanager
    def serving(self) -> Iterator[None]:
        """One more request."""
        self._now(self.streams + 1)
        try:
            yield
        finally:
            self._now(self.streams - 1)

    def _now(self, streams: int) -> None:
        self.streams = self._among_many.streams = streams
