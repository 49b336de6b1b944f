"""`tandem.rounds` of a stream's chunks: for each round who made which token, and for each piece of text whose it is."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, Field

from server.backend import RoundTimings
from server.text.attribution import Attributed, Span, Token, TokenOrigin


class ReportedToken(BaseModel):
    """`draft`: an accepted draft token. The target's own are `target` (in place of a draft token that it rejected),
    `bonus` (after a draft that it accepted whole) and `plain` (nothing was drafted)."""

    origin: TokenOrigin
    source: str | None = Field(default=None, description="the drafter, of an accepted draft token")


class ReportedPiece(ReportedToken):
    token: int = Field(description="which of the round's tokens, from 0; one token's text may come in several pieces")
    text: str


class ReportedTimings(BaseModel):
    """Milliseconds. `network_ms` is what the round's calls cost beyond the workers' own time."""

    draft_ms: float
    verify_forward_ms: float
    sample_ms: float
    queue_ms: float
    network_ms: float
    total_ms: float


class ReportedRound(BaseModel):
    """A round that has just been made or, with `round` and `pieces` alone, text of an earlier one that was held back.

    The `pieces` of a chunk, joined, are its text.
    """

    round: int = Field(description="of this choice, from 0")
    tokens: list[ReportedToken] | None = Field(default=None, description="those counted in usage.completion_tokens")
    draft_tokens: int | None = Field(default=None, description="γ: draft tokens that were verified")
    num_candidates: int | None = Field(default=None, description="N: candidates that were verified")
    timings: ReportedTimings | None = None
    pieces: list[ReportedPiece]


class RoundsAlone(BaseModel):
    """`tandem` of a chunk that does not end the stream."""

    rounds: list[ReportedRound]


class RoundReports:
    """Those of one choice, gathered until a chunk takes them along."""

    def __init__(self) -> None:
        self._rounds: list[ReportedRound] = []

    def made(self, attributed: Attributed) -> None:
        """A round whose text, if any, is added as pieces."""
        done = attributed.round
        self._rounds.append(
            ReportedRound(
                round=attributed.number,
                tokens=[_reported(token) for token in attributed.tokens],
                draft_tokens=done.num_drafted,
                num_candidates=done.num_candidates,
                timings=_timings(done.timings),
                pieces=[],
            )
        )

    def take(self, spans: Iterable[Span]) -> list[ReportedRound]:
        """What a chunk with the text of `spans` says: its pieces, and the rounds made since the last chunk."""
        made = {one.round: one for one in self._rounds}
        self._rounds = []
        reported: list[ReportedRound] = []
        for span in spans:
            number = span.token.round
            if not reported or reported[-1].round != number:
                reported.append(made.pop(number) if number in made else ReportedRound(round=number, pieces=[]))
            piece = ReportedPiece(token=span.token.index, text=span.text, origin=span.token.origin)
            if span.token.source is not None:
                piece.source = span.token.source
            reported[-1].pieces.append(piece)
        for silent in made.values():
            later = (place for place, one in enumerate(reported) if one.round > silent.round)
            reported.insert(next(later, len(reported)), silent)
        return reported


def _reported(token: Token) -> ReportedToken:
    reported = ReportedToken(origin=token.origin)
    if token.source is not None:
        reported.source = token.source
    return reported


def _timings(timings: RoundTimings) -> ReportedTimings:
    return ReportedTimings(
        draft_ms=round(timings.draft, 3),
        verify_forward_ms=round(timings.verify_forward, 3),
        sample_ms=round(timings.sample, 3),
        queue_ms=round(timings.queue, 3),
        network_ms=round(timings.network, 3),
        total_ms=round(timings.total, 3),
    )
