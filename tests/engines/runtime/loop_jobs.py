"""Jobs for an engine loop over the fake runner, and ways to hold up its passes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from engines.runtime.jobs import Feed, Job, Seat, Steps
from engines.runtime.loop import EngineLoop
from engines.runtime.rows import Row
from engines.runtime.slots import SlotCache
from engines.sampling.rows import SamplingRow
from protocol.messages import Sampling
from testing.fakes.runner import FakeRunner, hash_logits
from testing.patience import PATIENCE

GREEDY = Sampling(temperature=0.0, seed=0)
FOREVER = float("inf")


def row(ids: Sequence[int]) -> SamplingRow:
    return SamplingRow(GREEDY, 0, len(ids), ids, 0)


def best_after(ids: Sequence[int]) -> int:
    return int(hash_logits(ids).argmax())


def job(ids: list[int], steps: int = 1, owner: int | None = None, salt: str | None = None) -> Job[list[int]]:
    """Reads `ids`, then decodes `steps` tokens."""

    def run(seat: Seat) -> Steps[list[int]]:
        done = list(ids)
        while len(done) < len(ids) + steps:
            feed = done[seat.length :]
            passed = yield Feed(feed, len(feed) - 1, rows=[row(done)], divisible=len(feed) - 1)
            assert passed is not None
            done += passed.drawn.tokens
        return done[len(ids) :]

    return Job(ids, salt, owner, len(ids) - 1, run)


def decoded(ids: list[int], steps: int = 1) -> list[int]:
    done = list(ids)
    for _ in range(steps):
        done.append(best_after(done))
    return done[len(ids) :]


class Gate:
    """Holds up passes until it is opened; `entered` says that one has begun."""

    def __init__(self, runner: FakeRunner) -> None:
        self.entered = threading.Event()
        self._open = threading.Event()
        runner.gate = self._pass

    def _pass(self, rows: list[Row]) -> None:
        self.entered.set()
        assert self._open.wait(PATIENCE)

    def open(self) -> None:
        self._open.set()

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, PATIENCE)


@asynccontextmanager
async def running(
    runner: FakeRunner,
    max_queue: int = 16,
    prefill_chunk: int = 64,
    hold_seconds: float = 0.0,
    step_seconds: dict[int, float] | None = None,
) -> AsyncIterator[EngineLoop]:
    slots = SlotCache(runner.num_slots, runner.copy, hold_seconds)
    loop = EngineLoop(runner, slots, max_queue, prefill_chunk, step_seconds=step_seconds)
    loop.start()
    try:
        yield loop
    finally:
        await asyncio.to_thread(loop.shutdown, 5.0)
        assert not loop.alive


def tokens_per_pass(runner: FakeRunner) -> list[list[int]]:
    return [sorted(len(row.token_ids) for row in rows) for rows in runner.passes]
