"""What is built around a runner: its measured steps, and the report of a loop that failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engines.runtime.engine import measure_step_seconds
from engines.runtime.loop import EngineLoop
from engines.runtime.rows import Row
from engines.runtime.slots import SlotCache
from protocol.errors import NotReady
from testing.fakes.runner import FakeRunner
from testing.wire import async_test
from tests.engines.runtime.loop_jobs import FOREVER, job


def test_only_what_fits_a_slot_is_measured() -> None:
    assert list(measure_step_seconds(FakeRunner(slot_length=8), repeats=1)) == [1, 2, 4, 8]


def test_a_slow_model_is_measured_in_less_than_a_second() -> None:
    runner, now = FakeRunner(), 0.0

    def take(rows: list[Row]) -> None:
        nonlocal now
        now += 0.035 * len(rows[0].token_ids)

    runner.gate = take
    seconds = measure_step_seconds(runner, clock=lambda: now)
    assert now < 1.0
    assert list(seconds) == [1, 2, 4]
    assert seconds == pytest.approx({rows: 0.035 * rows for rows in seconds})


def test_what_others_take_for_a_while_does_not_make_few_rows_look_dear() -> None:
    """Another worker that starts on the same cores: the first passes take eight times as long."""
    runner, now, passes = FakeRunner(), 0.0, 0

    def take(rows: list[Row]) -> None:
        nonlocal now, passes
        passes += 1
        now += (0.010 + 0.001 * len(rows[0].token_ids)) * (8.0 if passes <= 5 else 1.0)

    runner.gate = take
    seconds = measure_step_seconds(runner, clock=lambda: now)
    assert seconds == pytest.approx({rows: 0.010 + 0.001 * rows for rows in (1, 2, 4, 8, 16, 32)})


@async_test
async def test_a_loop_that_fails_reports_it_and_leaves_no_caller_waiting() -> None:
    runner = FakeRunner()
    reasons: list[str] = []
    slots = SlotCache(runner.num_slots, runner.copy)

    def broken(*args: Any) -> None:
        raise RuntimeError("slots are broken")

    slots.acquire = broken  # type: ignore[method-assign]
    loop = EngineLoop(runner, slots, 4, 64, on_death=reasons.append)
    loop.start()
    with pytest.raises(NotReady):
        await loop.run(job([1, 2, 3]), FOREVER)
    await asyncio.to_thread(loop.shutdown, 5.0)
    assert reasons == ["the engine's loop failed"]
    with pytest.raises(NotReady):
        await loop.run(job([1, 2, 3]), FOREVER)
