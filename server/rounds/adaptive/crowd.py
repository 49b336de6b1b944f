"""Whether many streams of a pair draft at all: by what all of them bring, drafting and not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from server.rounds.adaptive.acceptance import Acceptance
from server.rounds.adaptive.round import RoundOutcome

State = Literal["plain", "trying", "drafting"]

_SAMPLE = 4
"""Tokens of plain decoding of each stream; the first half comes beside the last drafts, and is booked with them."""
_TRIED = 4
"""Rounds and tokens of each stream, until a try ends of which some streams had no round."""
_CLEARLY = 0.5
"""Over the square root of how many rounds there were: so much slower drafting has to look."""
_FADING = 0.997
_SPENT_ON_TRYING = 0.01
"""Of what is decoded plainly: that has to make up for what the last try lost before there is another."""
_MOST_LOST = 4
"""Tokens of each stream, in a try: what stalls a worker once must not count for long."""
_LONGEST = 512
"""Rounds and tokens of each stream before plain decoding is measured again."""


@dataclass(slots=True)
class _Pace:
    rounds: float = 0.0
    """With drafts."""
    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float, drafts: bool) -> None:
        self.rounds = self.rounds * _FADING + drafts
        self.tokens = self.tokens * _FADING + tokens
        self.seconds = self.seconds * _FADING + seconds


def _new_yields() -> dict[bool, Acceptance]:
    return {drawn: Acceptance(fading=0.99, strength=8.0) for drawn in (True, False)}


@dataclass(slots=True)
class Crowd:
    """Streams of a pair that are many share passes, and maybe cores: what a draft costs the others, the times of its
    own rounds do not show, and plain decoding beside it looks as slow as it makes it.

    So all decode plainly for a moment; then each drafts a round, and decodes plainly until all had theirs. Whatever
    comes of any of them meanwhile counts, plain tokens beside drafts as well. If that is more than plain decoding
    brings, all do as they like until it is clearly less; else the try is repeated once plain decoding has paid for it.
    A round counts as the tokens that are to be expected of its γ: a few lucky drafts decide nothing.
    """

    tries: int = 0
    _state: State = "plain"
    _since: int = 0
    """Rounds and tokens since it is that."""
    _had: int = 0
    """Rounds with drafts since then."""
    _rest: float = 0.0
    """Tokens of plain decoding that make up for the last try."""
    _plain: _Pace = field(default_factory=_Pace)
    _drafts: _Pace = field(default_factory=_Pace)
    _yields: dict[bool, Acceptance] = field(default_factory=_new_yields)
    """By whether a model drew the draft."""

    def plain_tokens(self, streams: int, tried: int) -> int:
        """How many a stream is to decode now whose last round was in the try `tried`; 0: it may draft."""
        if self._state == "plain":
            if self._left(streams) <= 0 and not self._pays and not self._rest:
                lost = min(self._worth - self._drafts.tokens, _MOST_LOST * streams)
                self._rest = lost / _SPENT_ON_TRYING
            if (left := self._left(streams)) > 0:
                return left
            self._become("drafting" if self._pays else "trying")
        return int(self._state == "trying" and tried == self.tries)

    def observe_round(self, outcome: RoundOutcome, streams: int) -> None:
        seconds, tokens = outcome.draft_seconds + outcome.verify_seconds, float(outcome.emitted)
        if not outcome.draft_failed:
            known = self._yields[outcome.drawn]
            known.observe(outcome.asked, outcome.drafted, outcome.accepted)
            tokens = known.expected_tokens(outcome.asked)[-1]
        self._observe(tokens, seconds, True, streams)

    def observe_plain(self, tokens: int, seconds: float | None, streams: int) -> None:
        """Of any stream; `seconds` None: it is not known what they took."""
        if seconds is None:
            self._since += 1
        else:
            self._observe(tokens, seconds, False, streams)

    def observe_nothing(self, seconds: float, streams: int) -> None:
        """A worker that chooses was asked in vain."""
        self._observe(0, seconds, True, streams)

    def _observe(self, tokens: float, seconds: float, drafts: bool, streams: int) -> None:
        self._since += 1
        if self._state == "plain":
            if self._since > _SAMPLE // 2 * streams:
                self._plain.add(tokens, seconds, drafts)
            elif self._drafts.rounds:
                self._drafts.add(tokens, seconds, drafts)
            return
        self._drafts.add(tokens, seconds, drafts)
        self._had += drafts
        if self._state == "trying":
            if self._had >= streams or self._since >= _TRIED * streams:
                self._become("plain" if self._clearly_slower else "drafting")
        elif (self._had >= streams and self._clearly_slower) or self._since >= _LONGEST * streams:
            self._become("plain")

    def _become(self, state: State) -> None:
        if state == "plain":
            self._plain = _Pace()
        elif state == "trying":
            self._drafts = _Pace()
            self.tries += 1
        self._state, self._since, self._had, self._rest = state, 0, 0, 0.0

    def _left(self, streams: int) -> int:
        """Tokens of each stream."""
        return round((max(_SAMPLE * streams, self._rest) - self._since) / streams)

    @property
    def _worth(self) -> float:
        """Tokens of plain decoding, in the time that drafting took; 0 while unknown."""
        return self._drafts.seconds * self._plain.tokens / self._plain.seconds if self._plain.seconds else 0.0

    @property
    def _pays(self) -> bool:
        return self._drafts.rounds > 0.0 and self._drafts.tokens >= self._worth

    @property
    def _clearly_slower(self) -> bool:
        margin: float = _CLEARLY / max(self._drafts.rounds, 1.0) ** 0.5
        return self._drafts.tokens < (1.0 - margin) * self._worth
