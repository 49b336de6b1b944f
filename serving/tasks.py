"""Tasks with an owner: whoever spawns one can be sure that it ends with the owner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class BackgroundTasks:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self, seconds: float) -> None:
        """Give the tasks `seconds` to end, then cancel them."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1.0)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())
