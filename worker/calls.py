"""A session's call in flight: those that wait for it, and what they get if it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protocol.errors import EngineFailure, StaleRound, WireError
from protocol.messages import SequenceRequest


@dataclass(eq=False)
class Call:
    """One call in flight. `waiters` counts the requests that want its answer; with none left it is cancelled.

    `abandoned`: it was cancelled so, and may not be joined any more. `ended_by`: the error its waiters get.
    """

    request: SequenceRequest
    task: asyncio.Task[Any]
    waiters: int = 0
    abandoned: bool = False
    ended_by: WireError | None = None

    @property
    def alive(self) -> bool:
        """Whether it may still be joined."""
        return self.ended_by is None and not self.abandoned

    def overtake(self, reason: str) -> None:
        """Cancel the call; its waiters get StaleRound with this reason."""
        self.end(StaleRound(reason, "round"))

    def end(self, error: WireError) -> None:
        """Cancel the call; its waiters get the error."""
        self.ended_by = error
        self.task.cancel()

    def cancelled_by(self) -> WireError:
        """Why it was cancelled."""
        return self.ended_by or EngineFailure("the call was cancelled")

    def error(self) -> WireError | None:
        """The error with which the finished call ended; None if it succeeded."""
        if self.task.cancelled():
            return self.cancelled_by()
        error = self.task.exception()
        return error if isinstance(error, WireError) or error is None else EngineFailure("the engine failed")

    def tell(self, ended: Callable[[WireError | None], None]) -> None:
        """Have `ended` called with its `error` once it has finished."""
        self.task.add_done_callback(lambda task: ended(self.error()))


def same_question(one: SequenceRequest, other: SequenceRequest) -> bool:
    """Whether two requests ask the same of one context; a retry may have another deadline."""
    free = {"deadline_ms": other.deadline_ms, "trace": other.trace, "context": other.context}
    return type(one) is type(other) and one.model_copy(update=free) == other
