"""Idle work on the loop delays no job with a caller."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from protocol.errors import QueueFull
from testing.fakes.runner import FakeRunner
from testing.patience import until
from testing.wire import async_test
from tests.engines.runtime.loop_jobs import FOREVER, Gate, decoded, job, running


@async_test
async def test_idle_work_is_fed_alone_and_only_while_no_other_job_feeds() -> None:
    runner = FakeRunner(2)
    async with running(runner) as loop:
        await loop.run(job([1, 2], owner=1), FOREVER)
        gate = Gate(runner)
        idle = asyncio.create_task(loop.run(replace(job([1, 2, 3], steps=4, owner=1), idle=True), FOREVER))
        await gate.wait()
        runner.passes.clear()
        other = asyncio.create_task(loop.run(job([7, 8], steps=5), FOREVER))
        await until(lambda: loop.waiting == 1)
        gate.open()
        assert await other == decoded([7, 8], 5)
        assert await idle == decoded([1, 2, 3], 4)
        assert [len(rows) for rows in runner.passes] == [1] * 8, "never in one pass"
        slots = [rows[0].slot for rows in runner.passes]
        assert len(set(slots[:5])) == 1, "the other one first, all of it"


@async_test
async def test_idle_work_gets_no_slot_but_its_owners_and_gives_it_up() -> None:
    runner = FakeRunner(1)
    async with running(runner) as loop:
        with pytest.raises(QueueFull):
            await loop.run(replace(job([1, 2], owner=1), idle=True), FOREVER)
        await loop.run(job([1, 2], owner=1), FOREVER)
        gate = Gate(runner)
        idle = asyncio.create_task(loop.run(replace(job([1, 2, 3], steps=9, owner=1), idle=True), FOREVER))
        await gate.wait()
        other = asyncio.create_task(loop.run(job([7, 8]), FOREVER))
        await until(lambda: loop.waiting == 1)
        gate.open()
        assert await other == decoded([7, 8])
        with pytest.raises(QueueFull):
            await idle
        assert (loop.running, loop.waiting) == (0, 0)
