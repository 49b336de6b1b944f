"""However a verification that was held ends, what it held is gone at once, without the garbage collector."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from torch import Tensor

from engines.runtime.jobs import Feed, Job
from engines.runtime.runs import Run
from protocol.errors import WireError
from protocol.messages import VerifyRequest, VerifyResponse
from testing.garbage import all_gone, collector_off
from testing.wire import async_test, pause, request
from testing.worker_apps import Target, target
from tests.target_worker.test_follow import PROMPT, SAMPLING, following, plain, under_way
from worker.calls import Call
from worker.session import Session

KINDS = (Call, Run, Job, Feed, WireError, Tensor, VerifyRequest, VerifyResponse)


@pytest.fixture(autouse=True)
def unlogged(caplog: pytest.LogCaptureFixture) -> None:
    """pytest keeps what is logged, and with an exception all frames that it went through."""
    caplog.set_level(logging.CRITICAL + 1)


class Held:
    """Round 0 is in its pass, round 1 follows it, round 2 follows that."""

    def __init__(self, worker: Target, text: list[int]) -> None:
        self.worker, self.text = worker, text
        self.answers: list[asyncio.Future[Any]] = []

    def send(self, message: dict[str, Any]) -> asyncio.Future[Any]:
        self.answers.append(asyncio.ensure_future(self.worker.post("/v1/verify", message)))
        return self.answers[-1]

    def follow(self, came: list[int], **fields: Any) -> asyncio.Future[Any]:
        return self.send(request(**following((came, self.text[3:5]), **fields)))

    def follow_on(self) -> asyncio.Future[Any]:
        sent = [{"token_ids": self.text[3:6], "candidate": {"token_ids": self.text[6:8]}}]
        ids = [*PROMPT, *self.text[:3]]
        fields = {"ids": ids, "held": len(ids), "round": 2, "sampling": SAMPLING, "follows": 1}
        return self.send(request(**fields) | {"alternatives": sent, "candidates": []})


async def a_while() -> None:
    for _ in range(20):
        await pause()


async def followed(it: Held) -> None:
    it.follow(it.text[:3])
    await a_while()
    it.follow_on()


async def not_followed(it: Held) -> None:
    it.follow([7, 7])
    await a_while()
    it.follow_on()


async def replaced(it: Held) -> None:
    it.follow([7])
    await a_while()
    it.follow_on()
    await a_while()
    it.follow(it.text[:3])


async def joined(it: Held) -> None:
    it.follow(it.text[:3])
    await a_while()
    it.follow(it.text[:3])


async def left(it: Held) -> None:
    one = it.follow(it.text[:3])
    await a_while()
    it.follow_on()
    await a_while()
    one.cancel()


async def late(it: Held) -> None:
    await it.follow(it.text[:3], deadline_ms=30)


async def deleted(it: Held) -> None:
    it.follow(it.text[:3])
    await a_while()
    it.follow_on()
    await a_while()
    it.answers.append(asyncio.ensure_future(it.worker.client.delete("/v1/sessions/s")))


async def overtaken(it: Held) -> None:
    it.follow(it.text[:3])
    await a_while()
    it.send(request(ids=[*PROMPT, 9], held=len(PROMPT), round=3, candidates=[], sampling=SAMPLING))


async def failed(it: Held) -> None:
    """The pass of the one that it follows."""
    it.follow(it.text[:3])
    await a_while()
    it.follow_on()
    gate = it.worker.runner.gate

    def fail(rows: Any) -> None:
        gate(rows)
        raise RuntimeError("broken on purpose")

    it.worker.runner.gate = fail


WAYS = [followed, not_followed, replaced, joined, left, late, deleted, overtaken, failed]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@async_test
async def test_nothing_of_it_is_left(way: Callable[[Held], Awaitable[None]]) -> None:
    async with target() as worker:
        text = await plain(worker, 12)
        with collector_off() as alive:
            held, first = await under_way(worker, text[:2])
            it = Held(worker, text)
            await way(it)
            await a_while()
            held.open.set()
            for answer in [first, *it.answers]:
                with suppress(AssertionError, asyncio.CancelledError):
                    await answer
            worker.runner.gate = lambda rows: None
            del held, first, it, answer
            await all_gone(alive, *KINDS)
            await worker.client.delete("/v1/sessions/s")
            await all_gone(alive, *KINDS, Session)
