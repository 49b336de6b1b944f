"""The HTTP shell over real sockets: clients that leave, dawdle, or never read."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.types import Message

from config.workers import TargetWorkerConfig
from protocol.errors import StaleRound
from serving.connection import HttpConnection
from serving.disconnects import ClientGone, until_client_leaves
from serving.runner import DrainingServer
from target_worker.app import create_app
from target_worker.runtime.engine import LoopTarget
from testing.fakes.runner import FakeRunner
from testing.patience import until
from testing.wire import async_test, pause, request
from testing.worker_apps import fake_engine

SMALL_BUFFER = 8192
"""Bytes; small, so that a client that does not read is noticed soon."""
ENDLESS: dict[str, Any] = {"max_tokens": 1_000_000, "sampling": {"ignore_eos": True}}


class Served:
    """A target on a real port."""

    def __init__(self, port: int, runner: FakeRunner, engine: LoopTarget, server: DrainingServer) -> None:
        self.port = port
        self.server = server
        self.runner = runner
        self.loop = engine.model.loop

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        return await asyncio.open_connection(sock=connection, limit=SMALL_BUFFER)

    async def send(self, path: str, message: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection with a request sent and nothing read."""
        reader, writer = await self.connect()
        writer.write(post(path, json.dumps(message).encode()))
        await writer.drain()
        return reader, writer


def post(path: str, body: bytes, length: int | None = None) -> bytes:
    length = len(body) if length is None else length
    return (
        f"POST {path} HTTP/1.1\r\nHost: worker\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n".encode() + body
    )


async def until_ready(port: int) -> None:
    status = b""
    while b"200" not in status:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /ready HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n\r\n")
        status = await reader.readline()
        writer.close()


async def get(port: int, path: str) -> str:
    """The whole answer, its head included."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return answer


@asynccontextmanager
async def served(
    runner: FakeRunner | None = None, drain_seconds: float = 2.0, **settings: Any
) -> AsyncIterator[Served]:
    config = TargetWorkerConfig(slot_hold_ms=0, **settings)
    runner = runner or FakeRunner(config.slots, slot_length=100_000)
    engine = LoopTarget(fake_engine(runner, "target", config), config.stall_timeout_ms / 1000, False)
    app: FastAPI = create_app(config, lambda progress: engine)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
        listening.bind(("127.0.0.1", 0))
        uvicorn_config = uvicorn.Config(app, http=HttpConnection, log_level="warning", timeout_graceful_shutdown=2)
        server = DrainingServer(uvicorn_config, drain_seconds, lambda: None, app.state.drain)
        serving = asyncio.create_task(server.serve([listening]))
        await until(lambda: server.started)
        # The loop exists before the app has it: a request in between is answered with "not ready".
        await until_ready(listening.getsockname()[1])
        try:
            yield Served(listening.getsockname()[1], runner, engine, server)
        finally:
            server.should_exit = True
            await serving


@async_test
async def test_a_client_that_leaves_stops_its_stream_and_frees_its_slot() -> None:
    async with served(slots=1) as worker:
        reader, writer = await worker.send("/v1/generate", request([1, 2], **ENDLESS))
        await reader.readuntil(b'"round"')
        assert worker.loop.running == 1
        writer.close()
        await until(lambda: worker.loop.running == 0)
        passes = len(worker.runner.passes)
        await asyncio.sleep(0.02)
        assert len(worker.runner.passes) == passes


@async_test
async def test_a_worker_that_drains_goes_on_with_what_runs_begins_nothing_and_can_be_watched() -> None:
    async with served(slots=2, drain_seconds=60) as worker:
        reader, streaming = await worker.send("/v1/generate", request([1, 2], **ENDLESS))
        await reader.readuntil(b'"round"')
        worker.server.should_exit = True
        while "shutting down" not in (ready := await get(worker.port, "/ready")):
            await pause()
        assert ready.startswith("HTTP/1.1 503")
        assert (await get(worker.port, "/health")).startswith("HTTP/1.1 200")
        assert "tandem_target_num_requests_running 1.0" in await get(worker.port, "/metrics")
        refused, writer = await worker.send("/v1/verify", request([3], session_id="late", candidates=[]))
        assert b" 503 " in await refused.readline()
        assert b'"not_ready"' in await refused.read()
        writer.close()
        for _ in range(3):  # what runs goes on
            await reader.readuntil(b'"round"')
        streaming.close()


@async_test
async def test_a_second_signal_ends_a_drain_at_once() -> None:
    async with served(slots=1, drain_seconds=60) as worker:
        reader, _ = await worker.send("/v1/generate", request([1, 2], **ENDLESS))
        await reader.readuntil(b'"round"')
        worker.server.should_exit = True
        while "shutting down" not in await get(worker.port, "/ready"):
            await pause()
        worker.server.handle_exit(signal.SIGTERM, None)
        while await reader.read(2**16):
            pass


@async_test
async def test_a_client_that_leaves_while_it_waits_gives_up_its_place() -> None:
    async with served(slots=1) as worker:
        reader, streaming = await worker.send("/v1/generate", request([1, 2], **ENDLESS))
        await reader.readuntil(b'"round"')
        _, writer = await worker.send("/v1/verify", request([3], session_id="w", candidates=[]))
        await until(lambda: worker.loop.waiting == 1)
        writer.close()
        await until(lambda: worker.loop.waiting == 0)
        streaming.close()


@async_test
async def test_a_reader_that_never_reads_stops_its_own_job_and_nothing_else() -> None:
    async with served(slots=2, stall_timeout_ms=300) as worker:
        stalled = await worker.send("/v1/generate", request([1, 2], logprobs=20, **ENDLESS))
        await until(lambda: worker.loop.running == 1)
        # The socket's and the server's buffers fill up, then the job waits, and finally the client is cut off.
        await until(lambda: worker.loop.running == 0)
        reader, writer = await worker.send("/v1/verify", request([3], session_id="other", candidates=[]))
        assert b"200 OK" in await reader.readline()
        writer.close()
        stalled[1].close()


@async_test
async def test_a_body_survives_an_offer_to_upgrade() -> None:
    """Java's HttpClient makes one with its first request; plain uvicorn would lose the body."""
    async with served() as worker:
        body = json.dumps(request([1, 2, 3], candidates=[])).encode()
        offer = b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
        reader, writer = await worker.connect()
        writer.write(post("/v1/verify", body).replace(b"Connection: close\r\n", offer))
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()


@async_test
async def test_a_second_stream_of_a_session_takes_over_from_the_first() -> None:
    async with served(slots=1) as worker:
        first, one = await worker.send("/v1/generate", request([1, 2], **ENDLESS))
        await first.readuntil(b'"round"')
        second, two = await worker.send("/v1/generate", request([1, 2], **ENDLESS))
        await second.readuntil(b'"round"')
        rest = await first.read()
        assert rest.count(b'"stale_round"') == 1
        assert rest.rindex(b'"stale_round"') > rest.rindex(b'"token_ids"')
        one.close()
        two.close()


@async_test
async def test_a_body_that_dawdles_or_breaks_off_costs_nothing() -> None:
    async with served(body_timeout_ms=1000) as worker:
        reader, writer = await worker.connect()
        writer.write(post("/v1/verify", b"{", length=100))
        assert b"408" in await reader.readline()
        writer.close()
        _, writer = await worker.connect()
        writer.write(post("/v1/verify", b"{", length=100))
        await writer.drain()
        writer.close()
        reader, writer = await worker.send("/v1/verify", request([3], candidates=[]))
        assert b"200 OK" in await reader.readline()
        writer.close()


@async_test
async def test_a_deleted_sessions_stream_ends_with_a_reason() -> None:
    async with served(slots=1) as worker:
        reader, writer = await worker.send("/v1/generate", request([1, 2], **ENDLESS))
        await reader.readuntil(b'"round"')
        other, closer = await worker.connect()
        closer.write(b"DELETE /v1/sessions/s HTTP/1.1\r\nHost: worker\r\n\r\n")
        assert b"204" in await other.readline()
        assert worker.loop.running == 0
        assert b"deleted" in await reader.read()
        writer.close()
        closer.close()


@async_test
async def test_a_call_that_fails_after_its_client_left_logs_nothing() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def overtaken() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise StaleRound("the session was deleted", "round") from None

    with pytest.raises(ClientGone):
        await until_client_leaves(gone, overtaken())
    gc.collect()  # asyncio logs when the task is destroyed
    await pause()
    assert complaints == []
