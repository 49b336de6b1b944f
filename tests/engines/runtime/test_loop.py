"""The loop: who shares a pass, what never waits, how jobs end, and that each fails alone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.runtime.jobs import Feed, Job, Seat, Steps, Wait
from engines.runtime.rows import Row
from engines.sampling.rows import SamplingRow
from protocol.errors import BadRequest, DeadlineExceeded, EngineFailure, NotReady, QueueFull
from protocol.messages import Sampling
from testing.fakes.runner import FakeRunner, hash_logits
from testing.patience import PATIENCE, until
from testing.wire import async_test
from tests.engines.runtime.loop_jobs import (
    FOREVER,
    Gate,
    best_after,
    decoded,
    job,
    row,
    running,
    tokens_per_pass,
)


@async_test
async def test_whatever_waits_shares_one_pass_whatever_its_length() -> None:
    runner = FakeRunner(num_slots=4)
    gate = Gate(runner)
    async with running(runner) as loop:
        first = asyncio.create_task(loop.run(job([1, 2]), FOREVER))
        await gate.wait()
        contexts = [[3], [4, 5, 6], [7] * 10]
        others = [asyncio.create_task(loop.run(job(ids), FOREVER)) for ids in contexts]
        await until(lambda: loop.waiting == 3)
        gate.open()
        assert await first == decoded([1, 2])
        assert [await task for task in others] == [decoded(ids) for ids in contexts]
    assert tokens_per_pass(runner) == [[2], [1, 3, 10]]


@async_test
async def test_jobs_submitted_in_one_turn_of_the_event_loop_share_a_pass() -> None:
    runner = FakeRunner(num_slots=4)
    contexts = [[3], [4, 5, 6], [7] * 10]

    def slow_job(ids: list[int]) -> Job[list[int]]:
        time.sleep(0.01)  # long enough for a pass to begin with the earlier jobs
        return job(ids)

    async with running(runner) as loop:

        async def submit(ids: list[int]) -> list[int]:
            return await loop.run(slow_job(ids), FOREVER)

        assert await asyncio.gather(*map(submit, contexts)) == [decoded(ids) for ids in contexts]
    assert tokens_per_pass(runner) == [[1, 3, 10]]


@async_test
async def test_streams_and_a_long_prompt_share_passes_and_none_waits() -> None:
    runner = FakeRunner(num_slots=2)
    prompt = list(range(30)) * 6
    async with running(runner, prefill_chunk=16) as loop:
        gate = Gate(runner)
        stream = asyncio.create_task(loop.run(job([1, 2], steps=12), FOREVER))
        await gate.wait()
        long = asyncio.create_task(loop.run(job(prompt), FOREVER))
        await until(lambda: loop.waiting == 1)
        gate.open()
        assert await stream == decoded([1, 2], 12)
        assert await long == decoded(prompt)
    shared = tokens_per_pass(runner)[1:12]
    assert all(sizes[0] == 1 for sizes in shared), "the stream is in every pass"
    assert all(sizes[1:] == [16] for sizes in shared[:10]), "and the prompt gets on by a chunk in each"


@async_test
async def test_a_flood_of_long_prompts_shares_the_budget_and_lets_a_short_one_by() -> None:
    runner = FakeRunner(num_slots=4)
    async with running(runner, prefill_chunk=64) as loop:
        gate = Gate(runner)
        first = asyncio.create_task(loop.run(job([9]), FOREVER))
        await gate.wait()
        done: list[str] = []
        flood = [[i] * 150 for i in (1, 2)]
        tasks = [asyncio.create_task(loop.run(job(ids), FOREVER)) for ids in flood]
        short = asyncio.create_task(loop.run(job([3] * 20), FOREVER))
        for name, task in [("long", tasks[0]), ("long", tasks[1]), ("short", short)]:
            task.add_done_callback(lambda _, name=name: done.append(name))
        await until(lambda: loop.waiting == 3)
        gate.open()
        await asyncio.gather(first, short, *tasks)
    assert done[0] == "short"
    assert max(sum(sizes) for sizes in tokens_per_pass(runner)) <= 64 + 1


@async_test
async def test_what_a_slot_holds_is_not_computed_again() -> None:
    runner = FakeRunner(num_slots=2)
    ids = list(range(20))
    async with running(runner) as loop:
        reply = await loop.run(job(ids, steps=3, owner=1), FOREVER)
        await loop.run(job([*ids, *reply, 5], owner=1), FOREVER)
        loop.disown(1)
        await loop.run(job([*ids, 9], owner=2), FOREVER)
    assert tokens_per_pass(runner) == [[20], [1], [1], [2], [1]]


@async_test
async def test_a_job_that_raises_fails_alone() -> None:
    runner = FakeRunner()

    def wrong(seat: Seat) -> Steps[None]:
        yield Feed([1], 0, rows=[row([1])])
        raise ZeroDivisionError

    def refuses(seat: Seat) -> Steps[None]:
        yield Feed([1], 0, rows=[row([1])])
        raise BadRequest("no", "field")

    async with running(runner) as loop:
        good, bad, refused = await asyncio.gather(
            loop.run(job([4, 5], steps=3), FOREVER),
            loop.run(Job([1], None, None, 0, wrong), FOREVER),
            loop.run(Job([2], None, None, 0, refuses), FOREVER),
            return_exceptions=True,
        )
        assert good == decoded([4, 5], 3)
        assert isinstance(bad, EngineFailure)
        assert isinstance(refused, BadRequest)
        assert loop.running == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@async_test
async def test_unusable_logits_fail_their_own_job_alone(value: float) -> None:
    def logits(ids: Sequence[int]) -> Tensor:
        return torch.full((32,), value) if ids[0] == 13 else hash_logits(ids)

    runner = FakeRunner(logits=logits)
    gate = Gate(runner)
    async with running(runner) as loop:
        first = asyncio.create_task(loop.run(job([1]), FOREVER))
        await gate.wait()
        both = [asyncio.create_task(loop.run(job(ids), FOREVER)) for ids in ([13, 1], [4, 5])]
        await until(lambda: loop.waiting == 2)
        gate.open()
        bad, good = await asyncio.gather(*both, return_exceptions=True)
        await first
    assert tokens_per_pass(runner)[1] == [2, 2], "they shared a pass"
    assert isinstance(bad, EngineFailure)
    assert good == decoded([4, 5])


@async_test
async def test_a_draw_that_fails_fails_its_own_job_alone(caplog: pytest.LogCaptureFixture) -> None:
    def impossible(seat: Seat) -> Steps[None]:
        no_seed: Any = None
        yield Feed([1], 0, rows=[SamplingRow(Sampling(temperature=1.0, seed=0), no_seed, 1, [1], 0)])

    runner = FakeRunner()
    gate = Gate(runner)
    async with running(runner) as loop:
        first = asyncio.create_task(loop.run(job([1]), FOREVER))
        await gate.wait()
        jobs: list[Job[Any]] = [job([4, 5], 2), Job([1], None, None, 0, impossible), job([6], 2)]
        tasks = [asyncio.create_task(loop.run(one, FOREVER)) for one in jobs]
        await until(lambda: loop.waiting == 3)
        gate.open()
        one, bad, other = await asyncio.gather(*tasks, return_exceptions=True)
        await first
    assert tokens_per_pass(runner)[1] == [1, 1, 2], "they shared a pass"
    assert isinstance(bad, EngineFailure)
    assert (one, other) == (decoded([4, 5], 2), decoded([6], 2))
    assert "drawing for 3 requests failed" in caplog.text


@async_test
async def test_a_pass_that_fails_fails_its_jobs_and_the_loop_goes_on() -> None:
    runner = FakeRunner()

    def fail(rows: list[Row]) -> None:
        raise RuntimeError("out of memory")

    async with running(runner) as loop:
        await loop.run(job([1, 2, 3], owner=1), FOREVER)
        runner.gate = fail
        with pytest.raises(EngineFailure):
            await loop.run(job([1, 2, 3, 4], owner=1), FOREVER)
        runner.gate = lambda rows: None
        assert await loop.run(job([1, 2, 3, 4], owner=1), FOREVER) == decoded([1, 2, 3, 4])


@async_test
async def test_cancelling_frees_the_slot_and_nothing_runs_on() -> None:
    runner = FakeRunner(num_slots=1)
    gate = Gate(runner)
    async with running(runner) as loop:
        task = asyncio.create_task(loop.run(job([1, 2], steps=10_000), FOREVER))
        await gate.wait()
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done(), "the pass it is in still uses its slot"
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert loop.running == 0
        passes = len(runner.passes)
        assert await loop.run(job([7]), FOREVER) == decoded([7])
        assert len(runner.passes) == passes + 1


@async_test
async def test_a_waiting_job_can_be_cancelled() -> None:
    runner = FakeRunner(num_slots=1)
    gate = Gate(runner)
    async with running(runner) as loop:
        first = asyncio.create_task(loop.run(job([1]), FOREVER))
        await gate.wait()
        waiting = asyncio.create_task(loop.run(job([2]), FOREVER))
        await until(lambda: loop.waiting == 1)
        waiting.cancel()
        await asyncio.sleep(0.01)
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await first
    assert len(runner.passes) == 1


@async_test
async def test_past_its_deadline_a_job_is_dropped_unserved() -> None:
    runner = FakeRunner(num_slots=1, slot_length=1_000_000)  # more than it can fill before a deadline
    gate = Gate(runner)
    async with running(runner) as loop:
        first = asyncio.create_task(loop.run(job([1]), FOREVER))
        await gate.wait()
        late = asyncio.create_task(loop.run(job([2]), time.monotonic() + 0.02))
        await asyncio.sleep(0.05)
        gate.open()
        with pytest.raises(DeadlineExceeded):
            await late
        await first
        while not any(row.token_ids == [3] for rows in runner.passes for row in rows):  # it may be late at once
            with pytest.raises(DeadlineExceeded):
                await loop.run(job([3], steps=10_000_000), time.monotonic() + 0.5)
        with pytest.raises(DeadlineExceeded):
            await loop.run(job([4]), time.monotonic() - 1.0)
        assert loop.running == loop.waiting == 0
    assert [row.token_ids for rows in runner.passes for row in rows if row.start == 0] == [[1], [3]]


@async_test
async def test_the_queue_is_bounded_but_for_sessions_that_have_their_slot() -> None:
    runner = FakeRunner(num_slots=2)
    async with running(runner, max_queue=1) as loop:
        await loop.run(job([1, 2], owner=1), FOREVER)
        gate = Gate(runner)
        busy = [asyncio.create_task(loop.run(job([5, 5]), FOREVER))]
        await gate.wait()
        waiting = asyncio.create_task(loop.run(job([6]), FOREVER))
        await until(lambda: loop.waiting == 1)
        with pytest.raises(QueueFull):
            await loop.run(job([7]), FOREVER)
        own = asyncio.create_task(loop.run(job([1, 2, 3], owner=1), FOREVER))
        await until(lambda: loop.waiting == 2)
        gate.open()
        assert await own == decoded([1, 2, 3])
        await asyncio.gather(waiting, *busy)


@async_test
async def test_jobs_that_come_together_and_find_slots_take_no_place_in_the_queue() -> None:
    async with running(FakeRunner(num_slots=8), max_queue=1) as loop:
        prompts = [[number] for number in range(1, 9)]
        assert await asyncio.gather(*(loop.run(job(ids), FOREVER) for ids in prompts)) == list(map(decoded, prompts))


@async_test
async def test_a_waiting_job_gets_the_slot_of_a_session_that_is_deleted() -> None:
    runner = FakeRunner(num_slots=1)
    async with running(runner, hold_seconds=1000.0) as loop:
        await loop.run(job([1, 2], owner=1), FOREVER)
        waiting = asyncio.create_task(loop.run(job([5], owner=2), FOREVER))
        await until(lambda: loop.waiting == 1)
        assert await loop.run(job([1, 2, 3], owner=1), FOREVER) == decoded([1, 2, 3]), "its owner is served meanwhile"
        assert loop.waiting == 1
        loop.disown(1)
        assert await waiting == decoded([5])


@async_test
async def test_a_job_may_wait_for_something_else_but_not_for_ever() -> None:
    runner = FakeRunner(num_slots=2)
    ready = threading.Event()

    def steps(patience: float) -> Callable[[Seat], Steps[str]]:
        def run(seat: Seat) -> Steps[str]:
            yield Wait(ready.is_set, patience)
            return "done"

        return run

    async with running(runner) as loop:
        patient = asyncio.create_task(loop.run(Job([1], None, None, 0, steps(100.0)), FOREVER))
        with pytest.raises(DeadlineExceeded):
            await loop.run(Job([2], None, None, 0, steps(0.03)), FOREVER)
        assert await loop.run(job([3]), FOREVER) == decoded([3]), "others go on meanwhile"
        ready.set()
        loop.wake()
        assert await patient == "done"


@async_test
async def test_timings_separate_waiting_from_computing() -> None:
    runner = FakeRunner(num_slots=1)
    gate = Gate(runner)
    seen: list[Any] = []

    def steps(seat: Seat) -> Steps[None]:
        passed = yield Feed([1, 2, 3], 2, rows=[row([1, 2, 3])])
        assert passed is not None
        seen.append(passed.timings)

    async with running(runner) as loop:
        first = asyncio.create_task(loop.run(job([9]), FOREVER))
        await gate.wait()
        second = asyncio.create_task(loop.run(Job([1, 2, 3], None, None, 0, steps), FOREVER))
        await until(lambda: loop.waiting == 1)
        since = time.monotonic()
        await asyncio.sleep(0.05)
        waited_ms = (time.monotonic() - since) * 1e3
        gate.open()
        await asyncio.gather(first, second)
    (timings,) = seen
    assert timings.queue_ms >= waited_ms
    assert 0 < timings.forward_ms < timings.total_ms
    assert timings.total_ms == pytest.approx(timings.queue_ms + timings.forward_ms + timings.sample_ms, abs=0.01)
    assert (timings.rows, timings.sessions) == (3, 1)


@async_test
async def test_shutting_down_drains_and_then_refuses() -> None:
    runner = FakeRunner(num_slots=1)
    gate = Gate(runner)
    async with running(runner) as loop:
        tasks = [asyncio.create_task(loop.run(job([i], steps=3), FOREVER)) for i in (1, 2)]
        await gate.wait()
        stopping = asyncio.create_task(asyncio.to_thread(loop.shutdown, PATIENCE))
        await until(lambda: loop._closing)
        with pytest.raises(NotReady):
            await loop.run(job([3]), FOREVER)
        gate.open()
        assert [await task for task in tasks] == [decoded([1], 3), decoded([2], 3)]
        await stopping


@async_test
async def test_shutting_down_ends_what_takes_too_long() -> None:
    runner = FakeRunner(num_slots=1, slot_length=1_000_000)
    async with running(runner) as loop:
        endless = asyncio.create_task(loop.run(job([1], steps=10_000_000), FOREVER))
        waiting = asyncio.create_task(loop.run(job([2]), FOREVER))
        await until(lambda: loop.waiting == 1)
        await asyncio.to_thread(loop.shutdown, 0.02)
        for task in (endless, waiting):
            with pytest.raises(NotReady):
                await task


@async_test
async def test_a_tree_is_committed_along_one_path_and_may_follow_a_long_context() -> None:
    runner = FakeRunner(num_slots=1)
    context = list(range(30)) * 2
    got: list[list[int]] = []

    def steps(seat: Seat) -> Steps[None]:
        root = len(context) - 1
        # Two children of the root, the second with a child of its own.
        tree = [*range(-1, root), root, root, root + 2]
        rows = [row(context)] * 4
        passed = yield Feed([*context, 7, 8, 9], root, tree, rows=rows, divisible=root)
        assert passed is not None
        got.append(passed.drawn.tokens)
        seat.commit([root + 2, root + 3])

    async with running(runner, prefill_chunk=32) as loop:
        await loop.run(Job(context, None, 1, len(context) - 1, steps), FOREVER)
        assert runner.held[0] == [*context, 8, 9]
        after = [*context, 8, 9, 4]
        assert await loop.run(job(after, owner=1), FOREVER) == decoded(after)
    expected = [context, [*context, 7], [*context, 8], [*context, 8, 9]]
    assert got == [[best_after(ids) for ids in expected]]
    assert tokens_per_pass(runner) == [[32], [31], [1]]


@async_test
async def test_where_tokens_are_what_a_pass_takes_each_that_comes_has_one_of_its_own() -> None:
    """In the order they came, beside what goes on; where passes cost, all share one."""
    for seconds, expected in (
        ({1: 0.01, 2: 0.02, 4: 0.04, 8: 0.08}, [[1], [1, 3], [1, 4], [1, 5]]),
        ({1: 0.04, 2: 0.04, 4: 0.041, 8: 0.042}, [[1], [1, 3, 4, 5]]),
    ):
        runner = FakeRunner(8)
        async with running(runner, step_seconds=seconds) as loop:
            gate = Gate(runner)
            going_on = asyncio.create_task(loop.run(job([9], steps=8), FOREVER))
            await gate.wait()
            others = [asyncio.create_task(loop.run(job(list(range(3 + n)), owner=n), FOREVER)) for n in range(3)]
            await until(lambda loop=loop: loop.waiting == 3)  # type: ignore[misc]
            gate.open()
            await asyncio.gather(going_on, *others)
        assert tokens_per_pass(runner)[: len(expected)] == expected
