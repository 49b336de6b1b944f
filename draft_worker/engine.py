"""The seam between the draft service and whatever runs its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from basics.names import MAX_CANDIDATES, MAX_DRAFT_TOKENS
from draft_worker.outcomes import Ahead, Place
from protocol.messages import Candidate, DraftRequest, DraftTimings, GrammarType, Sampling
from protocol.worker_info import Capabilities

if TYPE_CHECKING:  # they import torch, which lookup alone can do without
    from engines.running_model import RunningModel
    from engines.sampling.columns import Columns


@dataclass(frozen=True, slots=True)
class SharedNoise:
    """For a draft whose ids are another vocabulary's: what the model's columns are there, and where it begins there."""

    columns: Columns
    position: int


@dataclass(frozen=True, slots=True)
class Drafted:
    """What a drafter answers. `cached_tokens`: of the context, how many were not computed again; `prepared`: of the
    first candidate, how many leading tokens were there before they were asked for; `places`: if the request asks for
    lookahead, what is known of each of its tokens' places (none where that is unknown)."""

    candidates: list[Candidate]
    cached_tokens: int
    timings: DraftTimings
    prepared: int = 0
    places: Sequence[Place] = ()


def capabilities(grammar_types: Sequence[GrammarType] = (), lookahead: bool = False) -> Capabilities:
    """What every draft worker can do; the engine that loads a model adds the grammars that it honours.

    `lookahead`: its drafter is one that LooksAhead. Where its model takes no trees the engine takes that back.
    """
    return Capabilities(
        rounds=[],
        strategies=[],
        max_candidates=MAX_CANDIDATES,
        max_draft_tokens=MAX_DRAFT_TOKENS,
        sampling=list(Sampling.model_fields),
        grammar_types=list(grammar_types),
        q=True,
        prediction=True,
        lookahead=lookahead,
    )


class DraftEngine(Protocol):
    """A draft model with its memory. Requests that reach it are checked (draft_worker/checks.py)."""

    shares_noise: bool
    """Whether `draft` takes `shared`."""

    @property
    def model(self) -> RunningModel:
        """What its service asks of the model beside tokens."""
        ...

    async def draft(
        self,
        request: DraftRequest,
        ids: list[int],
        owner: int | None,
        deadline: float,
        shared: SharedNoise | None = None,
    ) -> Drafted:
        """Draft after `ids`, the whole context, which does not change meanwhile. Raises WireError.

        Ids are the model's own. `shared`: the noise is that of another vocabulary, and only tokens of both are drawn.

        There is room for the request's `draft_tokens` (draft_worker/service.py sees to it); 0: the context is read.

        `owner` is the session's serial, None if the request belongs to none; `deadline` is on time.monotonic's
        clock. Cancelling the call frees what it holds before it returns.
        """
        ...


@runtime_checkable
class LooksAhead(Protocol):
    """A DraftEngine that can prepare drafts while nobody waits for it; asked if its capabilities have `lookahead`."""

    async def look_ahead(
        self, request: DraftRequest, ids: list[int], owner: int, ahead: Ahead, deadline: float
    ) -> None:
        """Fill in `ahead`, for the context `ids` and what `ahead` says was drafted after it, until that is done.

        It must delay no `draft` by more than a pass, whoever that is for. What is prepared must be what `draft` would
        draw at that context. Raises WireError; whatever has been filled in by then is good. Cancelling it frees what it
        holds before it returns.
        """
        ...

    @property
    def chains(self) -> bool:
        """Whether it may draw several tokens in a row at once."""
        ...

    @property
    def abreast(self) -> int:
        """How many outcomes it may draw at once at about the cost of one, at least 1."""
        ...

    @property
    def calls(self) -> int:
        """Calls of `draft` that run or wait."""
        ...
