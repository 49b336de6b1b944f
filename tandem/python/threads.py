"""An event loop in a thread of its own, and work in threads that nobody has to wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar

from tandem.python.errors import Misuse

T = TypeVar("T")

_CANCEL_SECONDS = 15.0


class _Call(Generic[T]):
    """One coroutine's way through a loop; `start` and `cancel` are for that loop, in this order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self.work = work
        self.done: Future[T] = Future()
        self._loop = loop
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(self.work)
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # its caller was interrupted before it was handed over
            self.work.close()
            self.done.set_exception(Misuse("closed before it was at work"))

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.done.set_exception(Misuse("closed while it was at work"))
        elif (error := task.exception()) is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(task.result())


class LoopThread:
    """Runs coroutines for callers that are not asynchronous. All calls are safe from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.ended = False
        self._thread = threading.Thread(target=self._serve, name="tandem-python", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. What interrupts the wait, Ctrl-C among it, cancels `work` and waits for its end."""
        call = _Call(self._loop, work)
        try:  # from before it is started: Ctrl-C may come in between
            self._start(call)
            return call.done.result()
        except BaseException:
            if not call.done.done() and self._soon(call.cancel):
                wait([call.done], timeout=_CANCEL_SECONDS)
            raise

    def begin(self, work: Coroutine[Any, Any, Any], then_end: bool = False) -> None:
        """Start `work` and return."""
        if self.ended:
            work.close()
            return
        call = _Call(self._loop, work)
        self._start(call)
        if then_end:
            self.ended = True
            call.done.add_done_callback(lambda _: self._loop.call_soon(self._loop.stop))

    def end(self) -> None:
        """Stop the loop, whatever still runs on it is cancelled, and wait for the thread's end."""
        self.ended = True
        self._soon(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CANCEL_SECONDS)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            rest = asyncio.all_tasks(self._loop)
            for task in rest:
                task.cancel()
            if rest:
                self._loop.run_until_complete(asyncio.wait(rest, timeout=_CANCEL_SECONDS))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self.ended = True
            self._loop.close()

    def _start(self, call: _Call[Any]) -> None:
        if not self._soon(call.start):
            call.work.close()
            raise Misuse("closed already: make a new one")

    def _soon(self, call: Callable[[], Any]) -> bool:
        """Whether the loop still takes calls."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # it is closed
            return False
        return True


async def in_daemon_thread(work: Callable[[], T], abandon: Callable[[T], None]) -> T:
    """What `work` returns, computed in a thread that the process's end does not wait for.

    If the caller is cancelled the thread goes on, and `abandon` gets what it returns.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    handed_over = threading.Lock()
    left = False

    def deliver(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - it is the caller's to see
            failure: BaseException = error
            _quietly(lambda: loop.call_soon_threadsafe(deliver, None, failure))
            return
        with handed_over:
            if not left and _quietly(lambda: loop.call_soon_threadsafe(deliver, result, None)):
                return
        abandon(result)

    threading.Thread(target=run, name="tandem-load", daemon=True).start()
    try:
        return await done
    except asyncio.CancelledError:
        with handed_over:
            left = True
        raise


def _quietly(call: Callable[[], Any]) -> bool:
    try:
        call()
    except RuntimeError:  # the loop is closed
        return False
    return True
