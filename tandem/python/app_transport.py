"""httpx requests answered by an ASGI app of this process, without a socket, streams piece by piece.

httpx's own ASGITransport hands out an answer once the app has finished it, so that nothing could be streamed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx
from starlette.types import ASGIApp, Message

_PIECES = 4096
"""Pieces of an answer that may be ahead of their reader before the app waits."""
_LEAVE_SECONDS = 5.0


class AppTransport(httpx.AsyncBaseTransport):
    """Each request is a task, which ends with its answer: closing the answer is to the app a client that leaves."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call = _Call(self._app, request, await request.aread())
        try:
            return await call.response()
        except BaseException:
            await call.aclose()
            raise


class _Call(httpx.AsyncByteStream):
    def __init__(self, app: ASGIApp, request: httpx.Request, body: bytes) -> None:
        self._body: bytes | None = body
        self._left = asyncio.Event()
        self._start: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_PIECES)
        path = request.url.path
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": path,
            "raw_path": request.url.raw_path.partition(b"?")[0],
            "query_string": request.url.query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": None,
            "server": None,
        }
        self._task = asyncio.get_running_loop().create_task(self._run(app, scope))
        self._task.add_done_callback(self._ended)

    async def response(self) -> httpx.Response:
        start = await self._start
        return httpx.Response(start["status"], headers=start["headers"], stream=self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def aclose(self) -> None:
        """Returns once the app has let go of the request."""
        self._left.set()
        while not self._pieces.empty():  # an app that waits for room goes on
            self._pieces.get_nowait()
        if not self._task.done():
            await asyncio.wait({self._task}, timeout=_LEAVE_SECONDS)
        if not self._task.done():
            self._task.cancel()

    async def _run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        await app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._left.is_set():
            raise OSError("the client has left")
        if message["type"] == "http.response.start":
            if not self._start.done():
                self._start.set_result(message)
            return
        if body := message.get("body", b""):
            await self._pieces.put(body)
        if not message.get("more_body", False):
            await self._pieces.put(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self._start.done():
            self._start.set_exception(httpx.RemoteProtocolError("the gateway ended without an answer"))
            self._start.exception()  # asyncio logs one that nobody retrieves, as of a caller that has left
        if not task.cancelled():
            task.exception()
        with suppress(asyncio.QueueFull):
            self._pieces.put_nowait(None)
