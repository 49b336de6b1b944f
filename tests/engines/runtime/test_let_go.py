"""However a job ends, what it held is gone when its caller is answered, without the garbage collector."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from torch import Tensor

from engines.runtime.jobs import Feed, Job, Seat, Steps
from engines.runtime.loop import EngineLoop
from engines.runtime.rows import Row
from engines.runtime.runs import Run
from protocol.errors import BadRequest, EngineFailure, WireError
from testing.fakes.runner import FakeRunner
from testing.garbage import all_gone, collector_off
from testing.wire import async_test
from tests.engines.runtime.loop_jobs import FOREVER, Gate, job, running


@pytest.fixture(autouse=True)
def unlogged(caplog: pytest.LogCaptureFixture) -> None:
    """pytest keeps what is logged, and with an exception all frames that it went through."""
    caplog.set_level(logging.CRITICAL + 1)


async def by_itself(loop: EngineLoop, runner: FakeRunner) -> None:
    await loop.run(job([1, 2]), FOREVER)


def raising(kind: type[Exception]) -> Callable[[EngineLoop, FakeRunner], Awaitable[None]]:
    def steps(seat: Seat) -> Steps[list[int]]:
        yield Feed([1, 2], 1)
        raise kind("on purpose")

    async def way(loop: EngineLoop, runner: FakeRunner) -> None:
        with suppress(BadRequest, EngineFailure):
            await loop.run(replace(job([1, 2]), steps=steps), FOREVER)

    way.__name__ = f"by_{kind.__name__}"
    return way


async def by_a_pass(loop: EngineLoop, runner: FakeRunner) -> None:
    def fail(rows: Sequence[Row]) -> None:
        raise RuntimeError("on purpose")

    runner.gate = fail
    with suppress(EngineFailure):
        await loop.run(job([1, 2]), FOREVER)


async def late(loop: EngineLoop, runner: FakeRunner) -> None:
    gate = Gate(runner)
    asyncio.get_running_loop().call_later(0.2, gate.open)
    with suppress(WireError):
        await loop.run(job([1, 2]), time.monotonic() + 0.1)


async def cancelled(loop: EngineLoop, runner: FakeRunner) -> None:
    gate = Gate(runner)
    task = asyncio.create_task(loop.run(job([1, 2]), FOREVER))
    await gate.wait()
    task.cancel()
    asyncio.get_running_loop().call_later(0.1, gate.open)
    with suppress(asyncio.CancelledError):
        await task


async def with_the_engine(loop: EngineLoop, runner: FakeRunner) -> None:
    gate = Gate(runner)
    task = asyncio.create_task(loop.run(job([1, 2], steps=100), FOREVER))
    await gate.wait()
    asyncio.get_running_loop().call_later(0.1, gate.open)
    await asyncio.to_thread(loop.shutdown, 0.0)
    await asyncio.wait({task})


WAYS = [by_itself, *map(raising, (BadRequest, RuntimeError)), by_a_pass, late, cancelled, with_the_engine]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@async_test
async def test_nothing_of_it_is_left(way: Callable[[EngineLoop, FakeRunner], Awaitable[None]]) -> None:
    runner = FakeRunner(num_slots=2)
    async with running(runner) as loop:
        await loop.run(job([5]), FOREVER)
        with collector_off() as alive:
            await way(loop, runner)
            await all_gone(alive, Run, Job, Feed, Tensor, WireError)
