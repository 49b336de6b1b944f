"""HTTP to one worker: kept-alive connections, a deadline on every call, a bound on every answer.

aiohttp's client rather than httpx: measured against a bare uvicorn on loopback, one POST costs the gateway 0.5 ms of
CPU instead of 2.2, and a round makes two of them (docs/rounds.md has the table).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
from pydantic import ValidationError

from protocol import errors as wire
from protocol.worker_info import Ready
from server.fleet.failures import BadAnswer, TooLate, WorkerFailure, WorkerUnreachable, failure_of
from serving.request_id import HEADER as REQUEST_ID_HEADER
from serving.request_id import REQUEST_ID

# uvicorn closes idle connections after 5 seconds: let go first, so that no request meets a closing connection.
_KEEP_ALIVE_SECONDS = 4.0
_MAX_ERROR_BYTES = 65_536
_MAX_RETRY_AFTER = 60.0


class Transport:
    """One worker's address. Must be opened in the event loop that uses it."""

    def __init__(
        self, url: str, *, token: str | None = None, ca_file: Path | None = None, connect_seconds: float = 2.0
    ) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "tandem-gateway"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._tls: ssl.SSLContext | bool = True
        if self.url.startswith("https://"):
            self._tls = ssl.create_default_context(cafile=str(ca_file) if ca_file is not None else None)
        self._connect_seconds = connect_seconds
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        # No limit on connections: there are never more than two for each stream, and streams are bounded.
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls, keepalive_timeout=_KEEP_ALIVE_SECONDS)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(self, method: str, path: str, body: bytes | None, *, seconds: float, max_bytes: int) -> bytes:
        """The body of a successful answer. Raises WorkerFailure for anything else, within `seconds`."""
        async with self._answer(method, path, body, seconds) as response:
            return await _read(response, max_bytes)

    async def lines(self, path: str, body: bytes, *, seconds: float, max_line: int) -> AsyncGenerator[bytes, None]:
        """The lines of a streamed answer, each awaited for at most `seconds`. Closing it cuts the connection."""
        pending = bytearray()
        async with self._answer("POST", path, body, seconds, stream=True) as response:
            while True:
                try:
                    async with asyncio.timeout(seconds):
                        chunk = await response.content.readany()
                except TimeoutError:
                    raise TooLate(f"{self.url}{path}: no line for {seconds:.1f} s") from None
                except (aiohttp.ClientError, OSError) as error:
                    raise WorkerUnreachable("cut", f"{self.url}{path}: {error!r}") from error
                if not chunk:
                    break
                pending += chunk
                *whole, rest = pending.split(b"\n")
                if len(rest) > max_line or any(len(line) > max_line for line in whole):
                    raise BadAnswer(f"{self.url}{path}: a line of more than {max_line} bytes")
                pending = bytearray(rest)
                for line in whole:
                    if line.strip():
                        yield bytes(line)
            if pending.strip():
                raise WorkerUnreachable("cut", f"{self.url}{path}: ended within a line")

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: bytes | None, seconds: float, stream: bool = False
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful answer, its body yet to be read. `seconds` bounds the body too, unless it is a stream."""
        if self._session is None:
            raise WorkerUnreachable("closed", f"{self.url} is closed")
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(seconds) as limit:
                response = await self._send(method, path, body)
                if response.status not in (200, 204):
                    raise await _refusal(response, f"{self.url}{path}")
                if stream:
                    limit.reschedule(None)
                yield response
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            raise WorkerUnreachable("connect", f"{self.url}: {error}") from error
        except TimeoutError as error:
            raise TooLate(f"{self.url}{path}: no answer within {seconds:.2f} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise WorkerUnreachable("cut", f"{self.url}{path}: {error!r}") from error
        finally:
            if response is not None:
                response.close()  # keeps the connection if the body was read, else cuts it

    async def _send(self, method: str, path: str, body: bytes | None) -> aiohttp.ClientResponse:
        assert self._session is not None
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if request_id := REQUEST_ID.get():
            headers[REQUEST_ID_HEADER] = request_id
        try:
            return await self._session.request(
                method, self.url + path, data=body, headers=headers, allow_redirects=False
            )
        except (aiohttp.ServerDisconnectedError, ConnectionResetError):
            # The worker had closed an idle connection, which is no sign of trouble: try once more.
            return await self._session.request(
                method, self.url + path, data=body, headers=headers, allow_redirects=False
            )


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    if response.content_length is not None and response.content_length > max_bytes:
        raise BadAnswer(f"{response.url}: answers {response.content_length} bytes, more than {max_bytes}")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise BadAnswer(f"{response.url}: compressed though not asked to")
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > max_bytes:
            raise BadAnswer(f"{response.url}: answers more than {max_bytes} bytes")
    return bytes(body)


async def _refusal(response: aiohttp.ClientResponse, where: str) -> WorkerFailure:
    """The failure that an unsuccessful answer means."""
    status = response.status
    detail = wire.ErrorDetail(code=f"http_{status}", message=f"status {status}")
    with suppress(ValidationError, BadAnswer):
        body = await _read(response, _MAX_ERROR_BYTES)
        if response.url.path == "/ready":
            detail = wire.ErrorDetail(code="not_ready", message=Ready.model_validate_json(body).detail)
        else:
            detail = wire.ErrorBody.model_validate_json(body).error
    return failure_of(status, detail, where, _retry_after(response.headers.get("Retry-After")))


def _retry_after(header: str | None) -> float:
    try:
        seconds = float(header) if header is not None else 1.0
    except ValueError:
        return 1.0
    return min(max(seconds, 0.05), _MAX_RETRY_AFTER) if seconds == seconds else 1.0
