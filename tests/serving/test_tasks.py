"""Tasks end with their owner."""

from __future__ import annotations

import asyncio

import pytest

from serving.tasks import TaskOwner
from testing.patience import PATIENCE


def test_tasks_end_with_their_owner() -> None:
    async def main() -> None:
        tasks = TaskOwner()
        never = tasks.start(asyncio.sleep(100))
        soon = tasks.start(asyncio.sleep(0))
        await tasks.close(0.05)
        assert never.cancelled()
        assert soon.done()
        assert len(tasks) == 0

    asyncio.run(main())


def test_a_failed_background_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("on purpose")

    async def main() -> None:
        tasks = TaskOwner()
        tasks.start(fail())
        await tasks.close(1.0)

    asyncio.run(main())
    assert "on purpose" in caplog.text


def test_a_task_started_after_the_end_begins_and_is_cancelled() -> None:
    begun, ended = [], []

    async def work() -> None:
        begun.append(True)
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(True)

    async def main() -> None:
        tasks = TaskOwner()
        tasks.cancel()
        task = tasks.start(work())
        await asyncio.wait({task}, timeout=PATIENCE)
        assert task.cancelled()

    asyncio.run(main())
    assert begun == ended == [True]
