"""What every drafter is asked and answers; draft_worker/drafters has them, and the table that says their order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

from config.workers import DraftWorkerConfig
from draft_worker.engine import Drafted, DraftEngine
from draft_worker.grammars import SessionGrammars
from draft_worker.memory import AnswerMemory
from protocol.messages import Candidate, DraftRequest, DraftTimings, TopK
from worker.session import Session

if TYPE_CHECKING:
    from draft_worker.lookahead import Lookahead

Memory = dict[str, Any]
"""What drafters remember of a session, each under its own source."""


class Translates(Protocol):
    """What drafts for a target with other ids (draft_worker/vocabularies)."""

    async def draft(self, engine: DraftEngine, asked: Asked, ahead: Sequence[int], tokens: int) -> Drafted:
        """`tokens` tokens of the target's after the context and `ahead`, which is drafted already."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request and its session, whose ids, the whole context, do not change while the request is served.

    Its `draft_tokens` is γ as far as there is room for tokens, 0 if the context is only to be read. The first
    `unchanged` ids are as they were at the session's last call. `deadline` is on time.monotonic's clock. `translator`:
    the ids are those of a target whose vocabulary is not the draft model's.
    """

    request: DraftRequest
    session: Session[Memory]
    unchanged: int
    deadline: float
    translator: Translates | None = None
    began: float = field(default_factory=time.perf_counter)

    @property
    def ids(self) -> list[int]:
        return self.session.ids

    @property
    def tokens(self) -> int:
        """γ."""
        return self.request.draft_tokens

    @property
    def certain(self) -> int:
        """How many leading ids are certain: the others are what a verification under way is assumed to bring."""
        return len(self.ids) - (self.request.assumed_tokens or 0)

    @property
    def owner(self) -> int | None:
        """The session's serial; None if the request belongs to no session, so that nothing is kept of it."""
        return self.session.serial if self.session.key is not None else None


@dataclass(frozen=True, slots=True)
class Means:
    """What drafters are made of: the settings, and the model, the target's grammars, the memory and lookahead."""

    config: DraftWorkerConfig
    engine: DraftEngine | None = None
    grammars: SessionGrammars | None = None
    memory: AnswerMemory | None = None
    lookahead: Lookahead | None = None


class Drafter(Protocol):
    """One way to propose tokens. `source` is its name on the wire and in metrics: [a-z_]+."""

    source: ClassVar[str]

    @classmethod
    def of(cls, means: Means) -> Self | None:
        """The worker's drafter of this kind; None if it lacks what that takes."""
        ...

    async def draft(self, asked: Asked) -> Drafted | None:
        """Candidates of at most `asked.tokens` tokens; None: the next drafter is asked. Raises WireError.

        Each token of a candidate must really have been drawn from the q that is sent with it (`certain` has one-hot
        q), or `probabilistic` would not be lossless; other strategies take any token. Cancelling the call frees what it
        holds before it returns. What is to be remembered of a session goes into `asked.session.state[source]`.
        """
        ...


STATED = 1_000_000
"""The `match` of a copy that nothing had to be found for: the grammar, or the caller, says what comes."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copied draft, and how many of the last tokens before it agree with what stands before its origin."""

    token_ids: list[int]
    match: int


@runtime_checkable
class Copier(Protocol):
    """A drafter whose drafts cost next to nothing, so that `auto` asks it in every round (draft_worker/auto.py)."""

    source: ClassVar[str]

    def copy(self, asked: Asked, ahead: list[int]) -> Copy | None:
        """What goes on after the context and `ahead`, tokens that are drafted already; within `asked.tokens` in all."""
        ...


def certain(asked: Asked, drafts: Sequence[list[int]]) -> Drafted:
    """Drafts that no model made: each token is certain, so its q is one-hot."""
    wants_q = asked.request.want_q
    candidates = [
        Candidate(
            token_ids=draft,
            logprobs=[0.0] * len(draft) if wants_q else None,
            q=[TopK(token_ids=[token_id], logprobs=[0.0]) for token_id in draft] if wants_q else None,
        )
        for draft in drafts
    ]
    total = (time.perf_counter() - asked.began) * 1e3
    timings = DraftTimings(queue_ms=0.0, forward_ms=0.0, sample_ms=0.0, total_ms=total)
    return Drafted(candidates, asked.unchanged, timings)


def permitted(
    asked: Asked, drafts: Sequence[list[int]], grammars: SessionGrammars | None, ahead: Sequence[int] = ()
) -> list[list[int]]:
    """The drafts up to what the grammar refuses, if that is known; those of which something is left. They go on after
    the context and `ahead`.

    Under `probabilistic` nothing is cut because of the token that stands there: it would bias the text.
    """
    if grammars is not None and not asked.request.want_q:
        ids = [*asked.ids, *ahead] if ahead else asked.ids
        drafts = [grammars.permitted(asked.request, ids, asked.owner, draft) for draft in drafts]
    return [draft for draft in drafts if draft]


def joined(first: Sequence[Candidate], second: Sequence[Candidate]) -> Candidate:
    """One draft after the other, each token with the q that it was drawn from."""
    parts = [*first, *second]
    sends_q = all(part.q is not None for part in parts)
    return Candidate(
        token_ids=[token_id for part in parts for token_id in part.token_ids],
        logprobs=[logprob for part in parts for logprob in part.logprobs or ()] if sends_q else None,
        q=[top for part in parts for top in part.q or ()] if sends_q else None,
    )
