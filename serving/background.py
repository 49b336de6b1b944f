"""An owner for tasks that may outlive the request that started them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

_CLOSE_SECONDS = 5.0


class Background:
    """Keeps its tasks referenced, and ends them when it is closed."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_cancelled = False

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """`work` must handle its own exceptions."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._is_cancelled:  # once it has begun, so that it can say so to whoever waits for it
            asyncio.get_running_loop().call_soon(task.cancel)
        return task

    def cancel(self) -> None:
        """Cancels them all, and those that are still started."""
        self._is_cancelled = True
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Cancels them all; one that does not end within seconds is given up."""
        tasks = list(self._tasks)
        self.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
