"""uvicorn, run so that it drains on a signal, ends what outlasts the drain, and can be ended from inside."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

from serving.connection import HttpConnection

logger = logging.getLogger("tandem")

# Lets streams that were ended write their last events.
_FAREWELL_SECONDS = 2
_LOOK_SECONDS = 0.5
KEEP_ALIVE_SECONDS = 65
"""For idle connections: well over the 5 s after which httpx, and so OpenAI's SDK, closes them. With
uvicorn's equal 5 s a request could be sent just as the server hangs up."""


class DrainingServer(uvicorn.Server):
    """When the drain time is over, or on a second signal, `end_requests` is called; soon after, all is cut.

    With `begin_drain` the server keeps listening while requests run, so that health checks still get an answer; that
    call makes the app refuse new requests.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain_seconds: float,
        end_requests: Callable[[], None],
        begin_drain: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._begin_drain = begin_drain
        self._drain_seconds = drain_seconds
        self._end_requests = end_requests
        self._drained = asyncio.Event()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_after_drain())
        try:
            if self._begin_drain is not None:
                self._begin_drain()
                await self._until_idle()
                self.config.timeout_graceful_shutdown = _FAREWELL_SECONDS  # whatever still runs has had its time
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _until_idle(self) -> None:
        """Until no request runs, the drain time is over, or a second signal came."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds):
                while (running := set(self.server_state.tasks)) and not self._drained.is_set():
                    await asyncio.wait(running, timeout=_LOOK_SECONDS)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            asyncio.get_running_loop().call_soon_threadsafe(self._drained.set)
        else:
            super().handle_exit(sig, frame)

    async def _end_after_drain(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds):
                await self._drained.wait()
        self._end_requests()


class HttpServer:
    """A uvicorn server whose process can be ended from inside."""

    def __init__(self, host: str, port: int, drain_seconds: float) -> None:
        self._host = host
        self._port = port
        self._drain_seconds = drain_seconds
        self._server: uvicorn.Server | None = None
        self._failed = False

    def run(
        self,
        app: FastAPI,
        end_requests: Callable[[], None] = lambda: None,
        begin_drain: Callable[[], None] | None = None,
    ) -> None:
        """Serve until SIGTERM or SIGINT, drain, and return. `end_requests` is to end what outlasts the drain;
        `begin_drain`: see DrainingServer.

        Ends the process with code 1 if `fail` was called."""
        config = uvicorn.Config(
            app,
            host=self._host,
            port=self._port,
            http=HttpConnection,
            ws="none",  # else uvicorn would take the connection over and leave the caller waiting
            log_config=None,  # uvicorn's loggers propagate like all others
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=math.ceil(self._drain_seconds) + _FAREWELL_SECONDS,
        )
        self._server = server = DrainingServer(config, self._drain_seconds, end_requests, begin_drain)

        def stop(number: int, frame: FrameType | None) -> None:
            server.should_exit = True

        # uvicorn drains on a signal and then raises it again: with its default handler, a clean end would look like a
        # crash to whoever started the process.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        server.run()
        if self._failed:
            sys.exit(1)

    def fail(self, reason: str) -> None:
        """Log why the app cannot serve, and end the process."""
        logger.critical("%s", reason)
        self._failed = True
        if self._server is not None:
            self._server.should_exit = True


_GC_THRESHOLD = 20_000


def settle_heap() -> None:
    """For a worker that has loaded its model and only serves from now on: keep the garbage collector out of the way.

    What was loaded stays, so it is never looked through, not even once: with torch and a model a full collection takes
    half a second, and finds some hundred objects after a start. And a batch call of 32 items, which holds some 2,500
    objects, no longer triggers four collections.
    """
    gc.freeze()
    collect_seldom()


def collect_seldom() -> None:
    gc.set_threshold(_GC_THRESHOLD, 10, 10)
