"""What lookahead knows of one session's text, and has prepared for it (docs/lookahead.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from draft_worker.outcomes import Ahead, Branch
from draft_worker.yields import Yields
from protocol.messages import DraftRequest

if TYPE_CHECKING:
    from draft_worker.drafter import Asked

_MOST_OLDER = 4
"""Beside the last: as many as a target holds verifications (worker/sessions.py)."""


@dataclass(slots=True)
class Older:
    """What was prepared before the last call, whose context was only assumed: it is there if that does not come."""

    at: int
    request: DraftRequest
    ahead: Ahead
    judged: bool = False


@dataclass(slots=True)
class Looking:
    """Of one session: what is known of its text, and what was prepared after its last call, of `at` ids of context."""

    yields: Yields
    gap: float | None = None
    at: int = 0
    each: int = 0
    began: float = 0.0
    request: DraftRequest | None = None
    ahead: Ahead | None = None
    task: asyncio.Task[None] | None = None
    fits: bool = False
    """Whether the call being served goes on from there."""
    older: list[Older] = field(default_factory=list)
    """Those that the call being served may go on from, too, oldest first."""

    def keep_older(self, asked: Asked, unchanged: int) -> None:
        """Those whose context the first `unchanged` ids, those that are as they were, still have."""
        self.older = [one for one in self.older if one.at <= unchanged and same_draws(one.request, asked.request)]

    def certain_now(self, asked: Asked) -> Iterator[tuple[Ahead, list[int]]]:
        """What was prepared before the last call and what turned out to come, once each.

        If the text went on as was assumed, that ends where the next was prepared.
        """
        last = self.at if self.fits else asked.certain
        for one, end in zip(self.older, [*(one.at for one in self.older[1:]), last], strict=False):
            if one.at < end <= asked.certain and not one.judged:
                one.judged = True
                yield one.ahead, asked.ids[one.at : end]

    def branch(self, asked: Asked, ahead: list[int]) -> tuple[Branch, int] | None:
        """What was begun for the context and `ahead`, however far it has grown; how many of its tokens these are."""
        last = [(self.at, self.ahead)] if self.fits and self.ahead is not None else []
        for at, prepared in [*last, *((one.at, one.ahead) for one in reversed(self.older))]:
            if (found := prepared.following([*asked.ids[at:], *ahead])) is not None:
                return found
        return None

    def still_open(self, asked: Asked) -> list[Older]:
        """What the session's next call may go on from, if what this one assumes does not come."""
        found = [one for one in self.older if not one.judged]
        if self.fits and self.ahead is not None and self.request is not None and asked.certain <= self.at:
            found.append(Older(self.at, self.request, self.ahead))
        return found[-_MOST_OLDER:]


def same_draws(one: DraftRequest, other: DraftRequest) -> bool:
    """Whether drafts drawn for one are those that the other asks for, given the context."""
    names = ("sampling", "choice_index", "num_prompt_tokens", "grammar", "want_q")
    return all(getattr(one, name) == getattr(other, name) for name in names)
