"""Ctrl-C at the worst moments: between a coroutine's start and the wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tandem.python.errors import Misuse
from tandem.python.threads import LoopThread


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.end()


@pytest.mark.parametrize("handed_over", [True, False])
def test_an_interrupt_while_work_is_handed_over_leaves_nothing_at_work(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch, handed_over: bool
) -> None:
    seen: list[str] = []

    async def work() -> None:
        seen.append("begun")
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("ended")

    soon: Callable[..., Any] = thread._loop.call_soon_threadsafe

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(thread._loop, "call_soon_threadsafe", soon)
        if handed_over:
            soon(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(thread._loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        thread.run(work())
    assert seen in ([], ["begun", "ended"])  # a task that is cancelled before its first step never begins

    async def answer() -> int:
        return len(asyncio.all_tasks())

    assert thread.run(answer()) == 1


def test_a_thread_that_has_ended_takes_no_work() -> None:
    thread = LoopThread()
    thread.end()
    with pytest.raises(Misuse, match="closed already"):
        thread.run(asyncio.sleep(0))
