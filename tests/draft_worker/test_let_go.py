"""However a preparation or a call ends, what it held is gone once the session's next call is answered, without the
garbage collector: that comes seldom (serving/runner.py), and the logits of what is prepared are megabytes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from torch import Tensor

from draft_worker import lookahead as lookahead_module
from draft_worker.lookahead import _Answered
from draft_worker.looking import Looking
from draft_worker.outcomes import Ahead, Branch
from engines.runtime.jobs import Feed, Job
from engines.runtime.rows import Row
from engines.runtime.runs import Run
from protocol.errors import WireError
from protocol.messages import DraftRequest
from testing.fakes.runner import FakeRunner
from testing.garbage import all_gone, collector_off
from testing.patience import PATIENCE
from testing.wire import async_test, pause
from testing.worker_apps import STOP, Drafter, blended, drafter
from tests.draft_worker.looking_ahead import give_time, prepared
from worker.calls import Call

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
GREEDY = {"temperature": 0.0, "logit_bias": {str(STOP): -100.0}}
PREPARED = (Ahead, Branch, _Answered, Tensor)
OF_CALLS = (Call, Run, Job, Feed, WireError)


@pytest.fixture(autouse=True)
def there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    give_time(monkeypatch)


@pytest.fixture(autouse=True)
def unlogged(caplog: pytest.LogCaptureFixture) -> None:
    """pytest keeps what is logged, and with an exception all frames that it went through."""
    caplog.set_level(logging.CRITICAL + 1)


class Preparing:
    """A worker with two slots whose passes that prepare can be held up."""

    def __init__(self, worker: Drafter) -> None:
        self.worker = worker
        self.round = 0
        self._entered, self._hold = threading.Event(), threading.Event()

    async def draft(self, ids: Sequence[int] = PROMPT, **fields: Any) -> list[int]:
        """A draft in the session's next round."""
        self.round += 1
        answer = await self.worker.draft(ids=ids, sampling=GREEDY, round=self.round, **fields)
        drafted: list[int] = answer["candidates"][0]["token_ids"]
        return drafted

    async def ahead(self, ids: Sequence[int] = PROMPT, **fields: Any) -> list[int]:
        """A draft; then what may follow it is prepared."""
        return await self.draft(ids, lookahead_tokens=6, **fields)

    async def done(self) -> None:
        await prepared(self.worker)

    def _gate(self, rows: Sequence[Row]) -> None:
        if any(row.parents is not None for row in rows):
            self._entered.set()
            assert self._hold.wait(PATIENCE)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """A preparation is in a pass until this is left."""
        self._entered.clear()
        self._hold.clear()
        self.worker.runner.gate = self._gate
        await self.ahead()
        assert await asyncio.to_thread(self._entered.wait, PATIENCE)
        try:
            yield
            await a_while()
        finally:
            self._hold.set()


async def a_while() -> None:
    """What was sent has arrived."""
    for _ in range(20):
        await pause()


async def used_whole(it: Preparing) -> None:
    whole = await it.draft(session_id="o", draft_tokens=5)
    await it.ahead()
    await it.done()
    assert await it.draft([*PROMPT, *whole]) == (await it.draft([*PROMPT, *whole], session_id="o"))


async def used_in_part(it: Preparing) -> None:
    whole = await it.draft(session_id="o", draft_tokens=5)
    await it.draft(lookahead_tokens=2)
    await it.done()
    await it.ahead([*PROMPT, *whole], draft_tokens=6)
    await it.done()


async def missed(it: Preparing) -> None:
    await it.ahead()
    await it.done()
    await it.ahead([*PROMPT, 30])
    await it.done()


async def overtaken_by_a_draft(it: Preparing) -> None:
    async with it.held():
        next_call = asyncio.create_task(it.ahead([*PROMPT, 30]))
    await next_call
    await it.done()


async def overtaken_by_several(it: Preparing) -> None:
    async with it.held():
        calls = []
        for token_id in (28, 29, 30):
            calls.append(asyncio.create_task(it.ahead([*PROMPT, token_id])))
            await a_while()
    for call in calls:
        with suppress(AssertionError):  # 409 for those that the next one overtook
            await call
    await it.done()


async def yielded(it: Preparing) -> None:
    """To calls that want its slot."""
    async with it.held():
        others = [asyncio.create_task(it.draft([token_id] * 3, session_id=f"s{token_id}")) for token_id in (1, 2)]
    await asyncio.gather(*others)
    await it.done()


async def late(it: Preparing) -> None:
    async with it.held():
        await asyncio.sleep(1.1)
    await it.done()


async def failed(it: Preparing) -> None:
    def fail(rows: Sequence[Row]) -> None:
        if any(row.parents is not None for row in rows):
            raise RuntimeError("broken on purpose")

    it.worker.runner.gate = fail
    await it.ahead()
    await it.done()


async def deleted(it: Preparing) -> None:
    async with it.held():
        await it.worker.client.delete("/v1/sessions/s")
    await it.done()


async def waited_for_in_vain(it: Preparing) -> None:
    async with it.held():
        await it.worker.post("/v1/prepared", {"session_id": "s", "round": it.round, "wait_ms": 20})
    await it.done()


async def waited_for_and_overtaken(it: Preparing) -> None:
    async with it.held():
        message = {"session_id": "s", "round": it.round, "wait_ms": 5000}
        waiting = asyncio.create_task(it.worker.post("/v1/prepared", message))
        await a_while()
        next_call = asyncio.create_task(it.ahead([*PROMPT, 30]))
    assert (await waiting)[1]["prepared"] == []
    await next_call
    await it.done()


async def assumed(it: Preparing) -> None:
    """Several contexts that are only assumed, then another."""
    ids = [*PROMPT, *(await it.ahead()), 7]
    for _ in range(3):
        await it.done()
        ids += [*(await it.ahead(ids, assumed_tokens=len(ids) - len(PROMPT), max_tokens=30)), 7]
    await it.done()
    await it.ahead([*PROMPT, 30])
    await it.done()


async def refused(it: Preparing) -> None:
    """A draft that the engine fails."""

    def fail(rows: Sequence[Row]) -> None:
        raise RuntimeError("broken on purpose")

    it.worker.runner.gate = fail
    with pytest.raises(AssertionError):
        await it.ahead()


async def left(it: Preparing) -> None:
    """A caller leaves a draft in mid-pass."""
    entered, hold = threading.Event(), threading.Event()

    def gate(rows: Sequence[Row]) -> None:
        entered.set()
        assert hold.wait(PATIENCE)

    await it.ahead()
    await it.done()
    it.worker.runner.gate = gate
    call = asyncio.create_task(it.ahead([*PROMPT, 30]))
    assert await asyncio.to_thread(entered.wait, PATIENCE)
    call.cancel()
    await a_while()
    hold.set()
    with suppress(asyncio.CancelledError):
        await call
    await it.done()


WAYS = [
    used_whole, used_in_part, missed, overtaken_by_a_draft, overtaken_by_several, yielded, late, failed, deleted,
    waited_for_in_vain, waited_for_and_overtaken, assumed, refused, left,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@async_test
async def test_nothing_of_it_is_left(
    way: Callable[[Preparing], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if way is late:
        monkeypatch.setattr(lookahead_module, "_MOST_SECONDS", 1.0)
    async with drafter(FakeRunner(2, logits=blended(0.3)), slots=2) as worker:
        it = Preparing(worker)
        await it.draft([1, 2])
        with collector_off() as alive:
            await way(it)
            await all_gone(alive, *OF_CALLS)
            worker.runner.gate = lambda rows: None
            await it.draft([*PROMPT, 27])
            await all_gone(alive, *PREPARED, *OF_CALLS)
            for session in ("s", "o", "s1", "s2"):
                await worker.client.delete(f"/v1/sessions/{session}")
            await all_gone(alive, *PREPARED, *OF_CALLS, Looking, DraftRequest)


@async_test
async def test_nothing_is_left_of_what_is_prepared_when_the_engine_is_closed() -> None:
    app = drafter(FakeRunner(2, logits=blended(0.3)), slots=2)
    with collector_off() as alive:
        async with app as worker:
            it = Preparing(worker)
            async with it.held():
                asyncio.get_running_loop().call_later(0.2, it._hold.set)
                closing = asyncio.create_task(worker.client.delete("/v1/sessions/none"))
            await closing
            await it.ahead([*PROMPT, 30])
        await all_gone(alive, *OF_CALLS)
