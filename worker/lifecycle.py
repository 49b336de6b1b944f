"""Loading a model behind an open port, so that /health answers and /ready reports the progress."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

from fastapi import FastAPI

from protocol.errors import NotReady
from protocol.worker_info import ModelInfo, Ready

logger = logging.getLogger(__name__)


class Service(Protocol):
    """What a worker serves once it is loaded."""

    @property
    def info(self) -> ModelInfo: ...

    async def delete(self, session_id: str) -> None:
        """Forget a session, if it is held; its work in flight ends."""
        ...

    async def close(self, patience: float) -> None:
        """Give running work `patience` seconds, then end it."""
        ...


S = TypeVar("S", bound=Service)


def stop_process(reason: str) -> None:
    """What a worker does when its model cannot be loaded, or has died: log why, and end as on SIGTERM."""
    logger.critical("the model cannot be served, stopping: %s", reason)
    os.kill(os.getpid(), signal.SIGTERM)


class Lifecycle(Generic[S]):
    """Loads a service in a thread, holds it, and closes it at the end."""

    def __init__(
        self,
        load: Callable[[Callable[[str], None]], S],
        on_failure: Callable[[str], None],
        drain_seconds: float,
        expected: type[Exception] | tuple[type[Exception], ...] = (),
        on_loaded: Callable[[], None] = lambda: None,
    ) -> None:
        """`load(progress)` reports its progress; `on_failure(reason)` is called if it raises, or with what `fail` gets.
        `on_loaded` is called once it returns, before the first call is let in.

        An exception is logged with its traceback, except for `expected` ones, whose message is all that the user needs.
        """
        self._load = load
        self._on_failure = on_failure
        self._drain_seconds = drain_seconds
        self._expected = expected
        self._on_loaded = on_loaded
        self._service: S | None = None
        self._draining = False
        self._failed = False
        self._detail = "starting"
        self._events: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """The app's: loading begins as it starts, and what was loaded is closed as it stops."""
        self._events = asyncio.get_running_loop()
        # A daemon thread, so that a process asked to stop while loading does not wait for it.
        threading.Thread(target=self._run, name="tandem-load", daemon=True).start()
        yield
        self.drain()
        if self._service is not None:
            await self._service.close(self._drain_seconds)

    def drain(self) -> None:
        """No call is let in any more; what runs goes on, and /health, /ready and /metrics are still answered."""
        self._draining = True
        if not self._failed:
            self._detail = "shutting down"

    def get(self) -> S:
        """Raises NotReady."""
        if self._service is None or self._draining or self._failed:
            raise NotReady(self._detail)
        return self._service

    def ready(self) -> Ready:
        ready = self._service is not None and not self._draining and not self._failed
        return Ready(ready=ready, detail=self._detail)

    def fail(self, reason: str, during: str = "") -> None:
        """The service cannot go on: no call is let in any more, /ready gives the reason, and `on_failure` gets it."""
        self._failed = True
        self._detail = during + reason
        if self._events is not None and not self._events.is_closed():
            self._events.call_soon_threadsafe(self._on_failure, reason)

    def _run(self) -> None:
        try:
            service = self._load(self._progress)
            self._on_loaded()
        except Exception as error:
            if not isinstance(error, self._expected):
                logger.exception("loading failed")
            self.fail(str(error) or type(error).__name__, "loading failed: ")
            return
        if not self._failed:
            self._detail = "ready"
        self._service = service

    def _progress(self, detail: str) -> None:
        logger.info("%s", detail)
        self._detail = detail
