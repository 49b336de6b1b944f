"""Calls on the engine's own loop: admission, deadlines, cancellation, shutdown. vLLM itself is a stand-in."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from engines.errors import ModelError
from engines.vllm import engine as module
from engines.vllm.engine import VllmEngine
from protocol.errors import DeadlineExceeded, NotReady, QueueFull
from testing.garbage import collector_off
from testing.patience import PATIENCE
from testing.wire import async_test, pause


class Engine(VllmEngine):
    """Serves one sequence, and lets one more wait."""

    def __init__(self, start: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        self.deaths: list[str] = []
        self.shut_down = False
        super().__init__(1, lambda sessions, tokens, seconds: None, self.deaths.append)
        self._starting = start

    async def _start(self, arguments: dict[str, Any]) -> None:
        if self._starting is not None:
            await self._starting()
        self.llm = SimpleNamespace(errored=False, shutdown=self._note_shutdown)
        self.max_sequences = 1
        self._watching = asyncio.create_task(self._watch())

    def _note_shutdown(self) -> None:
        self.shut_down = True


class Work:
    """A call's coroutine that ends on demand."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.cancelled = threading.Event()
        self._go_on = threading.Event()

    def finish(self) -> None:
        self._go_on.set()

    async def __call__(self) -> str:
        self.begun.set()
        try:
            while not self._go_on.is_set():  # noqa: ASYNC110  (the event is another thread's)
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return threading.current_thread().name


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    made.start({})
    yield made
    made.close(0.0)


async def begun(work: Work) -> None:
    while not work.begun.is_set():
        await pause()


def test_a_call_runs_on_the_engines_thread(engine: Engine) -> None:
    @async_test
    async def check() -> None:
        work = Work()
        work.finish()
        assert await engine.run(work()) == "tandem-vllm"
        assert engine.calls == 0

    check()


def test_what_the_work_raises_is_raised(engine: Engine) -> None:
    @async_test
    async def check() -> None:
        async def fails() -> None:
            raise QueueFull("its own")

        with pytest.raises(QueueFull, match="its own"):
            await engine.run(fails())
        assert engine.calls == 0

    check()


def test_more_than_may_wait_are_refused_before_any_work(engine: Engine) -> None:
    @async_test
    async def check() -> None:
        first, second, third = Work(), Work(), Work()
        running = [asyncio.create_task(engine.run(work())) for work in (first, second)]
        await begun(first)
        await begun(second)
        with pytest.raises(QueueFull):
            await engine.run(third())
        assert not third.begun.is_set()
        first.finish()
        second.finish()
        await asyncio.gather(*running)
        third.finish()
        await engine.run(third())

    check()


def test_a_deadline_ends_the_work(engine: Engine) -> None:
    @async_test
    async def check() -> None:
        work = Work()
        call = asyncio.create_task(engine.run(work(), time.monotonic() + 0.05))
        with pytest.raises(DeadlineExceeded) as raised:
            await call
        assert raised.value.field == "deadline_ms"
        assert not work.begun.is_set() or work.cancelled.is_set(), "nothing of it runs any more"
        assert engine.calls == 0

    check()


def test_a_cancelled_call_ends_its_work_first(engine: Engine) -> None:
    @async_test
    async def check() -> None:
        work = Work()
        call = asyncio.create_task(engine.run(work()))
        await begun(work)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert work.cancelled.is_set()
        assert engine.calls == 0

    check()


async def let_in(engine: Engine, work: Work) -> tuple[threading.Event, asyncio.Task[str]]:
    """A call that the engine's loop, kept busy until the event is set, has not come to yet."""
    busy = threading.Event()
    engine._loop.call_soon_threadsafe(busy.wait, PATIENCE)
    call = asyncio.create_task(engine.run(work()))
    await pause()
    return busy, call


def test_what_is_cancelled_before_the_engines_loop_comes_to_it_never_begins(engine: Engine) -> None:
    @async_test
    async def check() -> None:
        work = Work()
        busy, call = await let_in(engine, work)
        call.cancel()
        await pause()
        assert not call.done(), "it waits until it is known that nothing will run"
        busy.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not work.begun.is_set()
        assert engine.calls == 0

    check()


def test_shutting_down_ends_running_calls_and_refuses_others(engine: Engine) -> None:
    @async_test
    async def check() -> None:
        work, late = Work(), Work()
        call = asyncio.create_task(engine.run(work()))
        await begun(work)
        closing = asyncio.create_task(asyncio.to_thread(engine.close, 0.0))
        with pytest.raises(NotReady, match="shutting down"):
            await call
        assert work.cancelled.is_set()
        with pytest.raises(NotReady, match="shutting down"):
            await engine.run(late())
        await closing
        assert not late.begun.is_set()
        assert engine.shut_down
        assert engine.deaths == []

    check()


def test_a_call_let_in_just_before_the_shutdown_ends_too(engine: Engine) -> None:
    @async_test
    async def check() -> None:
        work = Work()
        busy, call = await let_in(engine, work)
        engine._closing = True  # as close() begins
        busy.set()
        with pytest.raises(NotReady, match="shutting down"):
            await call
        assert not work.begun.is_set()

    check()


def test_shutting_down_gives_running_calls_their_time(engine: Engine) -> None:
    @async_test
    async def check() -> None:
        work = Work()
        call = asyncio.create_task(engine.run(work()))
        await begun(work)
        closing = asyncio.create_task(asyncio.to_thread(engine.close, 20.0))
        while not engine._closing:
            await pause()
        work.finish()
        assert await call == "tandem-vllm"
        await closing
        assert not work.cancelled.is_set()

    check()


def test_a_dead_engine_takes_no_calls_and_is_reported(engine: Engine) -> None:
    @async_test
    async def check() -> None:
        engine.llm.errored = True
        work = Work()
        with pytest.raises(NotReady, match="died"):
            await engine.run(work())
        while not engine.deaths:
            await pause()

    check()


def test_a_failure_of_several_calls_does_not_keep_itself() -> None:
    """As everywhere where logits or answers would live on with it (docs/architecture.md)."""

    class Failing(Exception):
        pass

    async def fail() -> None:
        await pause()
        raise Failing

    async def ask() -> None:
        with pytest.raises(Failing):
            await module.all_of([fail(), asyncio.sleep(60.0)])

    with collector_off() as alive:
        asyncio.run(ask())
        assert alive(Failing, asyncio.Task) == Counter()


def test_a_start_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_START_SECONDS", 0.05)
    made = Engine(asyncio.Event().wait)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="has not answered for"):
        made.start({})
    made.close(0.0)
    assert not made._thread.is_alive()
