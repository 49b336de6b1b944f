"""vLLM's async engine on a thread and an event loop of its own, and its supervision."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from engines.errors import ModelError
from engines.running_model import OnPass
from engines.vllm.failures import as_wire_errors
from engines.vllm.requests import Answer, answer_of
from engines.vllm.stats import PassStats, stat_logger
from protocol.errors import DeadlineExceeded, EngineFailure, NotReady, QueueFull

T = TypeVar("T")

_WATCH_SECONDS = 0.25
_END_SECONDS = 30.0
_START_SECONDS = 3600.0
"""The largest models take many minutes to load and compile. vLLM's own limits are shorter, if they apply."""
_TRIAL_SECONDS = 600.0


class VllmEngine:
    """`start` it, `run` coroutines on its event loop, in which `ask` and `stream` reach vLLM; `close` when done.

    A loop of its own: vLLM's outputs do not wait for the worker's HTTP, nor that for them.
    """

    def __init__(self, max_queue: int, on_pass: OnPass, on_death: Callable[[str], None]):
        """`on_pass(sessions, tokens, seconds)` is called for every step, `on_death(reason)` if vLLM's process ended."""
        self.stats = PassStats(on_pass)
        self.calls = 0
        self.rows = 0
        self.max_sequences = 0
        self.llm: Any = None
        self._max_queue = max_queue
        self._on_death = on_death
        self._ids = itertools.count()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._watching: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tandem-vllm", daemon=True)

    def start(self, arguments: dict[str, Any]) -> None:
        """Start vLLM with these engine arguments; returns when it can serve. Raises ModelError."""
        self._thread.start()
        self.run_now(self._start(arguments), _START_SECONDS)

    def run_now(self, work: Coroutine[Any, Any, T], seconds: float = _TRIAL_SECONDS) -> T:
        """Run a coroutine on the engine's loop and wait for it, from a thread that has no event loop.

        Raises ModelError if it takes longer: this is for what is done as a worker starts.
        """
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result(seconds)
        except TimeoutError:
            running.cancel()
            raise ModelError(f"vLLM did not start: it has not answered for {seconds:g} s") from None

    async def run(self, work: Coroutine[Any, Any, T], deadline: float = float("inf")) -> T:
        """A call's coroutine, run on the engine's loop. `deadline` is on time.monotonic's clock.

        When this returns or raises, however it was cancelled, nothing of the work runs any more. Raises NotReady and
        QueueFull before any of it, DeadlineExceeded, EngineFailure, and whatever WireError the work raises.
        """
        if self._closing or self._is_dead():
            work.close()
            raise NotReady("the worker is shutting down" if self._closing else "vLLM's engine has died")
        if self.calls >= self.max_sequences + self._max_queue:
            work.close()
            raise QueueFull(f"{self.calls - self.max_sequences} requests are waiting already")
        self.calls += 1
        here = asyncio.get_running_loop()
        ended = here.create_future()
        task: list[asyncio.Task[T]] = []

        def begin() -> None:
            task.append(self._loop.create_task(work))
            self._tasks.add(task[0])
            task[0].add_done_callback(finish)
            if self._closing:  # since this call was let in: close() has not seen its task
                task[0].cancel()

        def finish(done: asyncio.Task[T]) -> None:
            self._tasks.discard(done)
            if not here.is_closed():
                here.call_soon_threadsafe(_set, ended)

        self._loop.call_soon_threadsafe(begin)
        try:
            left = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
            async with asyncio.timeout(left):
                await asyncio.shield(ended)
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed before the work was done", "deadline_ms") from None
        finally:
            if not ended.done():
                self._loop.call_soon_threadsafe(lambda: task[0].cancel())
                await _until(ended)
            self.calls -= 1
        if task[0].cancelled():
            raise NotReady("the worker is shutting down")
        return task.pop().result()  # left in this frame it would be part of a cycle with its error's traceback

    async def ask(self, ids: list[int], params: Any, salt: str | None = None) -> Answer:
        """One request's whole answer. On the engine's loop. Raises BadRequest, QueueFull and EngineFailure."""
        async with self.stream(ids, params, salt) as answers:
            found = [answer async for answer in answers]
        if not found:
            raise EngineFailure("vLLM gave no answer")
        return found[-1]

    @asynccontextmanager
    async def stream(
        self, ids: list[int], params: Any, salt: str | None = None
    ) -> AsyncIterator[AsyncIterator[Answer]]:
        """A request's answers as they come. On the engine's loop; leaving the context frees the request.

        Raises, as one is waited for, BadRequest, QueueFull and EngineFailure.
        """
        prompt: dict[str, Any] = {"prompt_token_ids": ids}
        if salt is not None:
            prompt["cache_salt"] = f"salt:{salt}"  # vLLM takes no empty one
        outputs = self.llm.generate(prompt, params, f"tandem-{next(self._ids)}")
        self.rows += 1
        try:
            yield _answers(outputs, time.perf_counter())
        finally:
            self.rows -= 1
            await outputs.aclose()

    def close(self, patience: float) -> None:
        """Give running calls `patience` seconds, end them, and vLLM's processes."""
        self._closing = True
        until = time.monotonic() + patience
        while self._tasks and not self._is_dead() and time.monotonic() < until:
            time.sleep(0.02)
        if not self._thread.is_alive():
            return
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_END_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_SECONDS)

    async def _start(self, arguments: dict[str, Any]) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        try:
            self.llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[stat_logger(self.stats)])
        except (ValueError, RuntimeError, TypeError, OSError, NotImplementedError) as error:
            raise ModelError(
                f"vLLM could not start with {arguments['model']}: {error}{_hint(arguments, error)}"
            ) from error
        self.max_sequences = self.llm.vllm_config.scheduler_config.max_num_seqs
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while not self._is_dead():  # noqa: ASYNC110  (vLLM keeps a flag, and sets no event)
            await asyncio.sleep(_WATCH_SECONDS)
        if not self._closing:
            self._on_death("vLLM's engine has died")

    async def _stop(self) -> None:
        await _end([task for task in (self._watching, *self._tasks) if task is not None])
        if self.llm is not None:
            self.llm.shutdown()

    def _is_dead(self) -> bool:
        return self.llm is not None and self.llm.errored


async def _answers(outputs: AsyncGenerator[Any, None], began: float) -> AsyncIterator[Answer]:
    with as_wire_errors():
        async for output in outputs:
            yield answer_of(output, began)


async def all_of(work: list[Coroutine[Any, Any, T]]) -> list[T]:
    """All results; if one fails, or this is cancelled, the others end before it raises."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await _end(tasks)
        del tasks  # an error's traceback has this frame, and the task that failed has the error: a cycle


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _set(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


async def _until(ended: asyncio.Future[None]) -> None:
    """Wait for a cancelled call to let go, however often the waiting is cancelled itself."""
    give_up = time.monotonic() + _END_SECONDS
    while not ended.done() and (left := give_up - time.monotonic()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.wait({ended}, timeout=left)


def _hint(arguments: dict[str, Any], error: Exception) -> str:
    """The commonest reason, for a vLLM engine process that logged its own but passed none on."""
    memory = arguments.get("kv_cache_memory_bytes")
    if memory is None or "Engine core initialization failed" not in str(error):
        return ""
    gib, length = memory / 2**30, arguments["max_model_len"]
    return f" (its own words stand above; memory_gb {gib:g} has to hold a context of {length} tokens)"
