"""Runs one service in this process: its app under uvicorn."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from config.roles import DraftSettings, ServeSettings, TargetSettings
from config.settings import UnusableFile
from tandem.addresses import is_loopback, listening_fault
from tandem.connection import Connection

logger = logging.getLogger("tandem")


# For the last events of streams that were ended to be written.
_FAREWELL_SECONDS = 2
KEEP_ALIVE_SECONDS = 65
"""For idle connections: well over the 5 s after which httpx, and with it OpenAI's SDK, lets go of its own. With
uvicorn's equal 5 s a request could be sent just as the server hangs up."""


class _Server(uvicorn.Server):
    """When the drain time is over, or on a second signal, `end_requests` is called; soon after all is cut."""

    def __init__(self, config: uvicorn.Config, drain_seconds: float, end_requests: Callable[[], None]) -> None:
        super().__init__(config)
        self._drain_seconds = drain_seconds
        self._end_requests = end_requests
        self._drained = asyncio.Event()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_after_drain())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

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


class Runner:
    """A uvicorn server that can be told from inside that its process has to end."""

    def __init__(self, host: str, port: int, drain_seconds: float) -> None:
        self._host = host
        self._port = port
        self._drain_seconds = drain_seconds
        self._server: uvicorn.Server | None = None
        self._failed = False

    def run(self, app: FastAPI, end_requests: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGTERM or SIGINT, drain, and return. `end_requests` is to end what outlasts the drain.

        Ends the process with code 1 where `fail` was called."""
        config = uvicorn.Config(
            app,
            host=self._host,
            port=self._port,
            http=Connection,
            ws="none",  # else uvicorn would take the connection over and leave the caller waiting
            log_config=None,  # uvicorn's loggers go the way of all others
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=math.ceil(self._drain_seconds) + _FAREWELL_SECONDS,
        )
        self._server = server = _Server(config, self._drain_seconds, end_requests)

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
        """The app cannot serve: say why and end."""
        logger.critical("%s", reason)
        self._failed = True
        if self._server is not None:
            self._server.should_exit = True


def run_gateway(settings: ServeSettings) -> None:
    """Serve until a signal comes. Raises UnusableFile for API keys or certificates that cannot be read."""
    _refuse_taken_port(settings.host, settings.port)
    from server.app import create_app
    from server.fleet import Fleet

    _set_up_logging(settings.log_level)
    if not (settings.api_keys or settings.api_key_file):
        warn_if_public(settings.host, "the gateway", "set TANDEM_SERVE_API_KEYS or --api-key-file")
    with _file_of("worker_ca_file", settings.worker_ca_file):
        fleet = Fleet(settings)
    with _file_of("api_key_file", settings.api_key_file):
        app = create_app(settings, fleet)
    runner = Runner(settings.host, settings.port, settings.drain_seconds)
    runner.run(app, end_requests=app.state.gateway.background.cancel)


@contextmanager
def _file_of(setting: str, path: Path | None) -> Iterator[None]:
    """What goes wrong inside is for want of the file that the setting names. Raises UnusableFile."""
    try:
        yield
    except (OSError, ValueError) as error:
        if path is None:
            raise
        reason = "it is not UTF-8 text" if isinstance(error, ValueError) else error.strerror or str(error)
        raise UnusableFile(setting, f"cannot read {path}: {reason}") from None


def run_draft_worker(settings: DraftSettings) -> None:
    """Serve until a signal comes, or the model cannot be loaded."""
    _refuse_taken_port(settings.host, settings.port)
    _set_up_worker(settings)
    from draft_worker.app import create_app

    runner = Runner(settings.host, settings.port, settings.drain_timeout_ms / 1000)
    runner.run(create_app(settings, on_failure=runner.fail, on_loaded=settle_heap))


def run_target_worker(settings: TargetSettings) -> None:
    """Serve until a signal comes, or the model cannot be loaded."""
    _refuse_taken_port(settings.host, settings.port)
    _set_up_worker(settings)
    from target_worker.app import create_app

    runner = Runner(settings.host, settings.port, settings.drain_timeout_ms / 1000)
    runner.run(create_app(settings, on_failure=runner.fail, on_loaded=settle_heap))


_GC_THRESHOLD = 20_000


def settle_heap() -> None:
    """For a worker that has loaded its model and only serves from now on: keep the garbage collector out of the way.

    What was loaded stays, so it is not looked through again (with torch and a model a full collection takes half a
    second); and a batch call of 32 items, which holds some 2,500 objects, no longer sets off four collections.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 10, 10)


def warn_if_public(host: str, what: str, remedy: str) -> None:
    """A loud warning where others can reach a service that asks nobody for a key."""
    if not is_loopback(host):
        logger.warning("%s listens on %s and asks for no key: whoever can reach it may use it; %s", what, host, remedy)


def _refuse_taken_port(host: str, port: int) -> None:
    """Ends the process with code 1 and one line, before anything is loaded."""
    if fault := listening_fault(host, port):
        sys.exit(f"tandem: port {port} on {host} cannot be used ({fault}): free it, or choose another with --port")


def _set_up_worker(settings: DraftSettings | TargetSettings) -> None:
    """Logging, the warning, and what torch reads from the environment as it loads: call it before torch is imported."""
    from engines.torch.environment import prepare_environment

    _set_up_logging(settings.log_level)
    if not settings.worker_token:
        warn_if_public(settings.host, "this worker", "set TANDEM_WORKER_TOKEN, here and on the gateway")
    prepare_environment(settings.threads, settings.batch_invariant)


def _set_up_logging(level: str) -> None:
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs a line for every request
