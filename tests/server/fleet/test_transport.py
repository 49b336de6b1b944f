"""HTTP to a worker: https and the token, and which failure each broken answer is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from server.fleet.failures import BadAnswer, Busy, SessionLost, TooLate, WorkerFailure, WorkerUnreachable
from server.fleet.transport import Transport
from testing.fakes.worker import FakeWorker, self_signed
from tests.server.fleet.harness import PLAIN, collect, expected, fleet_over, request, tokens


def test_https_with_a_ca_and_a_token(tmp_path: Path) -> None:
    key, certificate = self_signed(tmp_path)

    async def main() -> None:
        workers = [FakeWorker("target", token="secret"), FakeWorker("draft", token="secret")]
        for worker in workers:
            worker.tls = {"ssl_keyfile": key, "ssl_certfile": certificate}
        secret, ca = SecretStr("secret"), Path(certificate)
        async with fleet_over(workers[:1], workers[1:], worker_token=secret, worker_ca_file=ca) as fleet:
            rounds = await collect(fleet, request())
            assert tokens(rounds) == expected()
            assert sum(r.num_drafted for r in rounds) > 0
            assert tokens(await collect(fleet, replace(request(), speculation=PLAIN))) == expected()

    asyncio.run(main())


@pytest.mark.parametrize(("token", "with_ca", "reason"), [("wrong", True, "token"), ("secret", False, "ertificate")])
def test_a_wrong_token_or_an_unknown_certificate_is_reported(
    tmp_path: Path, token: str, with_ca: bool, reason: str
) -> None:
    key, certificate = self_signed(tmp_path)

    async def main() -> None:
        target = FakeWorker("target", token="secret")
        target.tls = {"ssl_keyfile": key, "ssl_certfile": certificate}
        ca = Path(certificate) if with_ca else None
        async with fleet_over([target], [], worker_token=SecretStr(token), worker_ca_file=ca) as fleet:
            assert not fleet.ready()[0]
            assert reason in fleet.ready()[1]
            assert target.calls == []

    asyncio.run(main())


@asynccontextmanager
async def answering(*answers: bytes, connect_seconds: float = 2.0) -> AsyncIterator[Transport]:
    """A transport to a server that sends these bytes, one answer a request, and then hangs up."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(left.pop(0) if left else b"")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    transport = Transport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", connect_seconds=connect_seconds)
    transport.open()
    try:
        yield transport
    finally:
        await transport.close()
        server.close()
        await server.wait_closed()


def reply(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("answer", "failure", "reason"),
    [
        (reply(b"x" * 11), BadAnswer, "bad_answer"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n" + b"x" * 11 + b"\r\n0\r\n\r\n",
            BadAnswer,
            "bad_answer",
        ),
        (reply(b"xy", "200 OK", "Content-Encoding: gzip"), BadAnswer, "bad_answer"),
        (reply(b"xyz")[:-1], WorkerUnreachable, "cut"),
        (b"", WorkerUnreachable, "cut"),
        (reply(b"", "302 Found", "Location: /"), WorkerFailure, "error"),
        (reply(b"no json", "500 Internal Server Error"), WorkerFailure, "error"),
        (reply(b"", "401 Unauthorized"), WorkerFailure, "unauthorized"),
        (reply(b"", "409 Conflict"), SessionLost, "conflict"),
        (reply(b"", "408 Request Timeout"), TooLate, "timeout"),
    ],
)
def test_every_broken_answer_is_a_failure_of_its_kind(answer: bytes, failure: type[WorkerFailure], reason: str) -> None:
    async def main() -> None:
        async with answering(answer, answer) as transport:
            with pytest.raises(failure) as raised:
                await transport.call("GET", "/x", None, seconds=20, max_bytes=10)
            assert raised.value.reason == reason

    asyncio.run(main())


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0", 0.05), ("-3", 0.05), ("9999", 60.0), ("soon", 1.0), ("nan", 1.0), (None, 1.0)],
)
def test_how_long_a_busy_worker_asks_to_wait_is_bounded(header: str | None, seconds: float) -> None:
    headers = [] if header is None else [f"Retry-After: {header}"]

    async def main() -> None:
        async with answering(reply(b"", "429 Too Many Requests", *headers)) as transport:
            with pytest.raises(Busy) as raised:
                await transport.call("GET", "/x", None, seconds=20, max_bytes=10)
            assert raised.value.retry_after == seconds

    asyncio.run(main())


def test_a_request_that_met_a_closing_connection_is_sent_once_more() -> None:
    async def main() -> None:
        async with answering(b"", reply(b"here")) as transport:
            assert await transport.call("GET", "/x", None, seconds=20, max_bytes=10) == b"here"

    asyncio.run(main())


def stream(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body


@pytest.mark.parametrize(
    ("body", "lines", "failure"),
    [
        (b"a\n\nbc\n", [b"a", b"bc"], None),
        (b"a\nbc", [b"a"], WorkerUnreachable),
        (b"a\n" + b"x" * 9 + b"\n", [], BadAnswer),
        (b"x" * 9, [], BadAnswer),
    ],
)
def test_lines_of_a_stream(body: bytes, lines: list[bytes], failure: type[WorkerFailure] | None) -> None:
    async def main() -> None:
        found: list[bytes] = []
        async with answering(stream(body)) as transport:
            with nullcontext() if failure is None else pytest.raises(failure):
                async for line in transport.lines("/x", b"{}", seconds=20, max_line=8):
                    found.append(line)
        assert found == lines

    asyncio.run(main())


def test_a_worker_that_does_not_answer_is_too_late() -> None:
    async def main() -> None:
        never = asyncio.Event()
        server = await asyncio.start_server(lambda reader, writer: never.wait(), "127.0.0.1", 0)
        transport = Transport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(WorkerUnreachable, match="closed"):
            await transport.call("GET", "/x", None, seconds=20, max_bytes=10)
        transport.open()
        with pytest.raises(TooLate):
            await transport.call("GET", "/x", None, seconds=0.05, max_bytes=10)
        await transport.close()
        never.set()
        server.close()

    asyncio.run(main())
