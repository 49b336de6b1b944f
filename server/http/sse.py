"""Server-sent events to a client that may read slowly, or not at all, or go away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serving.disconnects import ClientGone, until_client_leaves

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies of nginx's kind must not gather the events
]


def event(data: bytes, name: str | None = None) -> bytes:
    """One event, of that name. The data must hold no line breaks, as compact JSON does not."""
    return (b"event: " + name.encode() + b"\n" if name else b"") + b"data: " + data + b"\n\n"


class EventWriter:
    """Sends events; the response starts with the first of them, so that until then an error may still be one."""

    def __init__(self, send: Send, write_timeout: float) -> None:
        self._send = send
        self._timeout = write_timeout
        self.started = False

    async def events(self, *events: bytes) -> None:
        """In one write. Each is what `event` made."""
        if events:
            await self._write(b"".join(events))

    async def comment(self, text: bytes) -> None:
        """A line that clients skip: it shows proxies and clients that the connection lives."""
        await self._write(b": " + text + b"\n\n")

    async def end(self) -> None:
        await self._guarded({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, body: bytes) -> None:
        if not self.started:
            self.started = True
            await self._guarded({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        await self._guarded({"type": "http.response.body", "body": body, "more_body": True})

    async def _guarded(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._send(message)
        except (TimeoutError, OSError) as error:
            raise ClientGone from error


class EventStream(Response):
    """A response that `write` sends through the writer it is given; it is cancelled when the client goes away."""

    def __init__(self, write: Callable[[EventWriter], Awaitable[None]], write_timeout: float) -> None:
        super().__init__()
        self._stream = write
        self._write_timeout = write_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until_client_leaves(receive, self._stream(EventWriter(send, self._write_timeout)))
