"""Prompts that arrive together: read once, copied for the others, and no job waits for what will not come."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from contextlib import suppress
from functools import partial

import pytest

from engines.runtime.loop import EngineLoop
from engines.runtime.rows import Row
from protocol.errors import DeadlineExceeded, EngineFailure, QueueFull
from testing.fakes.runner import FakeRunner
from testing.patience import PATIENCE, until
from testing.wire import async_test, pause
from tests.engines.runtime.loop_jobs import FOREVER, decoded, job, running

CHUNK = 32
PROMPT = [i % 31 for i in range(200)]


class Turnstile:
    """Lets a given number of passes by."""

    def __init__(self, runner: FakeRunner) -> None:
        self._runner = runner
        self._tickets = threading.Semaphore(0)
        self._let = 0
        self.copies: list[int] = []
        runner.gate = self._pass

    def _pass(self, rows: list[Row]) -> None:
        self.copies.append(len(self._runner.copies))
        assert self._tickets.acquire(timeout=PATIENCE)

    async def let(self, passes: int = 0) -> None:
        """Let this many more by, and wait until the next one arrives."""
        self._let += passes
        if passes:
            self._tickets.release(passes)
        await until(lambda: len(self._runner.passes) == self._let + 1)

    def open(self) -> None:
        self._tickets.release(100_000)


def start(loop: EngineLoop, ids: list[int], deadline: float = FOREVER, **more: object) -> asyncio.Task[list[int]]:
    return asyncio.create_task(loop.run(job(ids, **more), deadline))  # type: ignore[arg-type]


async def join(loop: EngineLoop, ids: list[int], deadline: float = FOREVER, **more: object) -> asyncio.Task[list[int]]:
    """Start it while a pass is held up; it has arrived once this returns."""
    before = loop.waiting
    task = start(loop, ids, deadline, **more)
    await until(lambda: loop.waiting == before + 1)
    return task


def fed(runner: FakeRunner) -> int:
    return sum(len(row.token_ids) for rows in runner.passes for row in rows)


@pytest.mark.parametrize("slots", [2, 4, 8])
@async_test
async def test_one_prompt_is_read_once_however_many_want_it(slots: int) -> None:
    runner = FakeRunner(num_slots=slots)
    gate = Turnstile(runner)
    async with running(runner, prefill_chunk=CHUNK) as loop:
        tasks = [start(loop, PROMPT, steps=3, owner=owner) for owner in range(1, 6)]
        await gate.let()
        gate.open()
        assert [await task for task in tasks] == [decoded(PROMPT, 3)] * 5
    assert fed(runner) == len(PROMPT) + 2 + 4 * 3


@async_test
async def test_it_does_not_matter_how_much_has_been_read_by_then() -> None:
    runner = FakeRunner()
    gate = Turnstile(runner)
    async with running(runner, prefill_chunk=CHUNK) as loop:
        tasks = [start(loop, PROMPT)]
        await gate.let()
        for _ in range(3):
            await gate.let(1)
            tasks.append(await join(loop, PROMPT))
        await gate.let(1)
        assert (loop.running, loop.waiting) == (1, 3)
        gate.open()
        assert [await task for task in tasks] == [decoded(PROMPT)] * 4
    assert fed(runner) == len(PROMPT) + 3


@async_test
async def test_a_few_tokens_held_elsewhere_make_no_difference() -> None:
    runner = FakeRunner(num_slots=6)
    async with running(runner, prefill_chunk=CHUNK) as loop:
        await start(loop, PROMPT[:6] + [30] * 50, owner=1)
        before = fed(runner)
        tasks = [start(loop, PROMPT) for _ in range(4)]
        assert [await task for task in tasks] == [decoded(PROMPT)] * 4
    assert fed(runner) - before == len(PROMPT) + 3


@async_test
async def test_a_shared_beginning_is_read_once_and_no_job_waits_for_anothers_rest() -> None:
    runner = FakeRunner()
    gate = Turnstile(runner)
    shared = PROMPT[:130]
    rests = [[30] * 100, [29] * 20, [28] * 20]
    done: list[int] = []
    async with running(runner, prefill_chunk=CHUNK) as loop:
        tasks = [start(loop, shared + rest) for rest in rests]
        for i, task in enumerate(tasks):
            task.add_done_callback(partial(lambda i, _: done.append(i), i))
        await gate.let()
        gate.open()
        assert [await task for task in tasks] == [decoded(shared + rest) for rest in rests]
    assert fed(runner) == len(shared) + sum(map(len, rests))
    assert done[-1] == 0


@async_test
async def test_no_job_waits_for_one_that_has_read_what_they_share() -> None:
    runner = FakeRunner()
    gate = Turnstile(runner)
    async with running(runner, prefill_chunk=CHUNK) as loop:
        reader = start(loop, PROMPT[:90] + [30] * 150)
        await gate.let()
        await gate.let(3)
        late = await join(loop, PROMPT)
        await gate.let(1)
        assert loop.running == 2
        assert not reader.done()
        gate.open()
        await asyncio.gather(reader, late)
    assert fed(runner) == 240 + len(PROMPT) - 90


@async_test
async def test_little_in_common_is_read_at_once() -> None:
    runner = FakeRunner()
    gate = Turnstile(runner)
    async with running(runner, prefill_chunk=CHUNK) as loop:
        reader = start(loop, PROMPT)
        await gate.let()
        other = await join(loop, PROMPT[:40] + [30] * 60)
        await gate.let(1)
        assert loop.running == 2
        gate.open()
        await asyncio.gather(reader, other)


@async_test
async def test_another_salt_neither_waits_nor_shares() -> None:
    runner = FakeRunner()
    gate = Turnstile(runner)
    async with running(runner, prefill_chunk=CHUNK) as loop:
        tasks = [start(loop, PROMPT)]
        await gate.let()
        tasks += [await join(loop, PROMPT, salt=salt) for salt in ("a", "b", "a")]
        await gate.let(1)
        assert (loop.running, loop.waiting) == (3, 1)
        gate.open()
        assert [await task for task in tasks] == [decoded(PROMPT)] * 4
    assert fed(runner) == 3 * len(PROMPT) + 1


@async_test
async def test_if_the_reader_is_cancelled_another_reads_on() -> None:
    runner = FakeRunner()
    gate = Turnstile(runner)
    async with running(runner, prefill_chunk=CHUNK) as loop:
        tasks = [start(loop, PROMPT)]
        await gate.let()
        tasks += [await join(loop, PROMPT) for _ in range(3)]
        await gate.let(2)
        tasks[0].cancel()
        await pause()
        gate.open()
        assert [await task for task in tasks[1:]] == [decoded(PROMPT)] * 3
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
    assert fed(runner) == len(PROMPT) + 2


@async_test
async def test_if_the_reader_fails_another_reads_on() -> None:
    runner = FakeRunner()

    def fail_once(rows: list[Row]) -> None:
        if len(runner.passes) == 3:
            raise RuntimeError("out of memory")

    runner.gate = fail_once
    async with running(runner, prefill_chunk=CHUNK) as loop:
        first, *others = await asyncio.gather(*(start(loop, PROMPT) for _ in range(4)), return_exceptions=True)
        assert isinstance(first, EngineFailure)
        assert others == [decoded(PROMPT)] * 3
    assert fed(runner) == len(PROMPT) + CHUNK + 2


@async_test
async def test_those_that_wait_keep_their_deadlines_and_may_be_cancelled() -> None:
    runner = FakeRunner()
    gate = Turnstile(runner)
    async with running(runner, prefill_chunk=CHUNK) as loop:
        reader = start(loop, PROMPT)
        await gate.let()
        late, unwanted = await join(loop, PROMPT, time.monotonic() + 1.0), await join(loop, PROMPT)
        await gate.let(1)
        unwanted.cancel()
        await asyncio.sleep(1.05)
        await gate.let(1)
        for task, error in ((late, DeadlineExceeded), (unwanted, asyncio.CancelledError)):
            with pytest.raises(error):
                await task
        assert not reader.done()
        assert loop.waiting == 0
        gate.open()
        assert await reader == decoded(PROMPT)
    assert fed(runner) == len(PROMPT)


@async_test
async def test_those_that_wait_keep_their_place_and_take_none_in_the_queue() -> None:
    runner = FakeRunner(num_slots=3)
    gate = Turnstile(runner)
    async with running(runner, prefill_chunk=CHUNK, max_queue=1) as loop:
        tasks = [start(loop, PROMPT, steps=2)]
        await gate.let()
        for _ in range(2):
            tasks.append(await join(loop, PROMPT, steps=2))
            await gate.let(1)
        tasks.append(await join(loop, [5, 5]))
        await gate.let(1)
        assert (loop.running, loop.waiting) == (1, 3), "two slots are free, and kept"
        with pytest.raises(QueueFull):
            await start(loop, [6, 6])
        gate.open()
        await asyncio.gather(*tasks)
    starts = [row.token_ids for rows in runner.passes for row in rows if row.start in (0, len(PROMPT) - 1)]
    assert starts[-1] == [5, 5], "first come, first served"


@async_test
async def test_a_session_with_a_slot_of_its_own_never_waits() -> None:
    runner = FakeRunner()
    async with running(runner, prefill_chunk=CHUNK, hold_seconds=1000.0) as loop:
        await start(loop, PROMPT[:30], owner=1)
        gate = Turnstile(runner)
        gate._let = 1
        reader = start(loop, PROMPT, owner=2)
        await gate.let()
        own = await join(loop, PROMPT, owner=1)
        await gate.let(1)
        assert loop.running == 2
        gate.open()
        assert await own == await reader == decoded(PROMPT)


@async_test
async def test_running_streams_see_one_copy_a_pass() -> None:
    runner = FakeRunner(num_slots=6)
    gate = Turnstile(runner)
    async with running(runner, prefill_chunk=CHUNK) as loop:
        stream = start(loop, [1, 2], steps=40)
        await gate.let()
        tasks = [await join(loop, PROMPT, steps=9) for _ in range(5)]
        gate.open()
        assert [await task for task in tasks] == [decoded(PROMPT, 9)] * 5
        assert await stream == decoded([1, 2], 40)
    assert len(runner.copies) == 4
    assert all(after - before <= 1 for before, after in zip(gate.copies, gate.copies[1:], strict=False))


@pytest.mark.parametrize("seed", range(6))
@async_test
async def test_whatever_comes_and_goes_everyone_gets_the_right_tokens(seed: int) -> None:
    """The runner checks that attention only covers written positions; the logits show that these hold the right ids."""
    chance = random.Random(seed)
    runner = FakeRunner(num_slots=3)
    async with running(runner, prefill_chunk=CHUNK, max_queue=64) as loop:

        async def one() -> None:
            ids = PROMPT[: chance.choice([0, 70, 120, 199])] + [chance.randrange(31)] * chance.choice([1, 20, 50])
            owner, salt = chance.choice([None, 1, 2, 3]), chance.choice([None, None, "a"])
            task = start(loop, ids, steps=2, owner=owner, salt=salt)
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() * 0.01)
                task.cancel()
            with suppress(asyncio.CancelledError):
                assert await task == decoded(ids, 2)

        await asyncio.gather(*(one() for _ in range(40)))
        assert (loop.running, loop.waiting) == (0, 0)
