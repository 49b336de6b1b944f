"""What the round loop and its planner tell each other."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from server.fleet.times import DraftTimes, StepTimes


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Either a round of `draft_tokens` (at least 1), or, with 0, `plain_tokens` of plain decoding."""

    draft_tokens: int
    num_candidates: int = 1
    plain_tokens: int = 0
    worker_chooses: bool = False
    """The draft worker chooses the drafter, and a length of at most `draft_tokens`."""
    lookahead: bool = False
    """The draft worker is to prepare the next drafts while this one is verified."""
    prepared_tokens: int = 0
    """A draft that is prepared may be longer than `draft_tokens`: as long as it is there, up to this."""
    least_ahead: int | None = None
    """How short a prepared draft may be to be verified before the verdict on this one is back; None: none is to be."""
    depth: int = 1
    """How many verifications may be under way at a time."""


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """One speculative round. Times are seconds; `rows` are ours in the pass, `gain` is what candidates 1 and up won."""

    asked: int
    num_candidates: int
    drafted: int
    accepted: int
    emitted: int
    gain: int
    draft_seconds: float
    draft_failed: bool
    verify_seconds: float
    rows: int
    lookahead: bool = False
    """Drafts were being prepared while this round was verified."""
    looked_ahead: bool = False
    """Drafts were being prepared in the round before: this one's draft may have been ready."""
    prepared: int | None = 0
    """How many of its tokens were there when it was asked for; None: some, but how many is not to be told."""
    asked_at: float | None = None
    """When its draft was asked for, on a clock that all requests share; None: not known."""
    drawn: bool = True
    """A model drew its draft, or some of it."""

    def as_whole(self, times: Times) -> RoundOutcome:
        """The round as if its draft had not ended with a stop token, but had its full length.

        If the stop token is discarded its position is drawn again, with the same noise. Under `probabilistic`
        whether a position carries a draft must not depend on that noise; so the inputs of γ must not reveal what was
        drawn.
        """
        return replace(
            self,
            drafted=self.asked,
            prepared=None if self.prepared else self.prepared,
            draft_seconds=max(self.draft_seconds, times.drafts.draft(self.asked, self.num_candidates)),
            verify_seconds=max(self.verify_seconds, times.steps.verify(1 + self.asked)),
            rows=max(self.rows, 1 + self.asked),
        )


@dataclass(frozen=True, slots=True)
class Times:
    """Times of the target and the drafter in use. `ahead`: of drafts that may be prepared, by what of them was not;
    None if there are none. `extends`: those that are may be longer than asked. `alike`: requests that decide by the
    same, ours among them."""

    steps: StepTimes
    drafts: DraftTimes
    ahead: DraftTimes | None = None
    extends: bool = False
    alike: int = 1

    def plain(self) -> float:
        """Seconds of a token if all who are alike decode plainly."""
        return self.steps.plain(self.alike)

    def verify(self, own_rows: float) -> float:
        """Seconds of a verification of so many rows if all who are alike have as many, the network included.

        One alone that drafts more makes the pass only a little longer, for all; and all think so.
        """
        return self.steps.verify(own_rows, self.alike)

    def prices(self, draft_tokens: int) -> list[float]:
        """Of none, 1, 2, … draft tokens, by the same (StepTimes.prices)."""
        return self.steps.prices(draft_tokens, self.alike)

    def of(self, lookahead: bool) -> Times:
        """Those to plan with, depending on whether drafts are prepared."""
        return replace(self, drafts=self.ahead) if lookahead and self.ahead is not None else self


class Planner(Protocol):
    @property
    def alike(self) -> int:
        """Requests being served that decide as this one does, itself among them."""
        ...

    def plan(self, times: Times) -> RoundPlan: ...

    def observe(self, outcome: RoundOutcome, times: Times) -> None: ...

    def observe_plain(self, tokens: int) -> None: ...

    def observe_nothing(self, seconds: float, times: Times) -> None: ...

    def observe_ahead(self, used: bool, others: int) -> None:
        """What came of a verification that was sent, or to be sent, while `others` were under way."""
        ...

    def serving(self) -> AbstractContextManager[None]:
        """To be held while the request is served."""
        ...
