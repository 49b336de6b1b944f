"""Tasks with an owner: whoever starts one can be sure that it ends with the owner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")

_CANCEL_SECONDS = 5.0


def let_go(task: asyncio.Future[Any]) -> None:
    """A done callback for a task whose outcome nobody may ask for.

    asyncio logs an exception that nobody has asked for. The CancelledError of a cancelled task it keeps until somebody
    does, with each frame that it went through and all that they hold; if they hold the task, until the garbage
    collector comes.
    """
    if task.cancelled():
        with suppress(asyncio.CancelledError):
            task.result()
    else:
        task.exception()


class TaskOwner:
    """Keeps its tasks referenced, logs those that fail, and ends them when it is closed."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_cancelled = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if self._is_cancelled:  # after it has begun, so that it can report to its waiters
            asyncio.get_running_loop().call_soon(task.cancel)
        return task

    def cancel(self) -> None:
        """Cancels all tasks, and those started later."""
        self._is_cancelled = True
        for task in list(self._tasks):
            task.cancel()

    async def close(self, grace_seconds: float = 0.0) -> None:
        """Gives the tasks `grace_seconds` to end, then cancels them; abandons those that will not end."""
        if self._tasks and grace_seconds > 0:
            await asyncio.wait(set(self._tasks), timeout=grace_seconds)
        self.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_CANCEL_SECONDS)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        let_go(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())
