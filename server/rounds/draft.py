"""What is asked of a draft worker and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from basics.names import CACHE, MODEL
from protocol.errors import WireError
from protocol.messages import Candidate, DraftPart


@dataclass(frozen=True, slots=True)
class Draft:
    """The outcome of one draft call. No candidates: the worker had nothing to propose, or failed. Times are seconds."""

    candidates: list[Candidate]
    source: str | None
    worker_ms: float
    sample_ms: float
    seconds: float
    failed: bool
    planned: int | None = None
    """The length the worker chose, if it did."""
    parts: tuple[tuple[str, int], ...] = ()
    """The drafters that its tokens come from, if the worker reports them, and how many each."""
    prepared: int = 0
    """How many of its tokens the worker had prepared."""

    @property
    def drawn(self) -> bool:
        """Whether a model drew some of it, or was to and failed."""
        sources: list[str | None] = [source for source, _ in self.parts]
        return self.failed or MODEL in (sources or [self.source])

    @classmethod
    def none(cls, seconds: float = 0.0, failed: bool = False) -> Draft:
        return cls([], None, 0.0, 0.0, seconds, failed)

    @classmethod
    def told(cls, candidate: Candidate, planned: int, parts: Sequence[DraftPart]) -> Draft:
        """One that the worker had ready before it was asked for; without parts all of it is the model's."""
        found, prepared = as_drawn([(part.source, part.tokens) for part in parts] or [(CACHE, planned)])
        return cls([candidate], found[0][0], 0.0, 0.0, 0.0, False, planned, found, prepared)


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a draft call says of lookahead: the length of the drafts to prepare for what may come (0: none).

    `most`: if this draft is prepared it may be longer than γ, up to this; `flight_seconds`: what one that is prepared
    whole saves beside drafting; `seconds`: how long there is to prepare, if the worker can't know.
    """

    tokens: int = 0
    most: int = 0
    flight_seconds: float = 0.0
    seconds: float | None = None


def as_drawn(parts: list[tuple[str, int]]) -> tuple[tuple[tuple[str, int], ...], int]:
    """The parts, prepared tokens counted as the model's; and how many tokens were prepared."""
    found: list[tuple[str, int]] = []
    for source, tokens in parts:
        name = MODEL if source == CACHE else source
        if found and found[-1][0] == name:
            found[-1] = name, found[-1][1] + tokens
        else:
            found.append((name, tokens))
    return tuple(found), sum(tokens for source, tokens in parts if source == CACHE)


def blames_the_draft(refusal: WireError) -> bool:
    """A client's request never supplies the candidates, so a fault in them is the drafter's."""
    return refusal.field is not None and refusal.field.split(".")[0] == "candidates"
