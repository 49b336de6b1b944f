"""Work and streams that end when the client who asked for them leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel
from starlette.types import Message, Receive, Scope, Send

from worker.errors import ClientGone

logger = logging.getLogger(__name__)
T = TypeVar("T")

_CANCEL_SECONDS = 5.0


async def until_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; it is cancelled, and ClientGone raised, when the client leaves before."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_see)
    gone = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone("the client left before it was answered")
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_SECONDS)


def _see(task: asyncio.Future[Any]) -> None:
    """Nothing complains of an exception that nobody waits for any more, such as StaleRound for a client that left."""
    if not task.cancelled():
        task.exception()


async def disconnected(receive: Receive) -> None:
    """Returns when the client has left; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class LinesResponse(Response):
    """JSON lines, each sent as soon as there is one. A reader that leaves, or stalls, ends the iterator at once."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncGenerator[BaseModel, None], stall_seconds: float) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._lines = lines
        self._stall_seconds = stall_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(disconnected(receive))
        sending = asyncio.ensure_future(self._send(send))
        sending.add_done_callback(_see)
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except TimeoutError:
            # Returning in mid-answer makes the server close the connection: whoever does not read gets no more.
            logger.warning("a reader left its stream unread for %g s and was cut off", self._stall_seconds)
        finally:
            gone.cancel()
            if not sending.done():
                sending.cancel()
                await asyncio.wait({sending}, timeout=_CANCEL_SECONDS)
            await self._lines.aclose()

    async def _send(self, send: Send) -> None:
        async def bounded(message: Message) -> None:
            async with asyncio.timeout(self._stall_seconds):
                await send(message)

        await bounded({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for line in self._lines:
            body = line.__pydantic_serializer__.to_json(line) + b"\n"
            await bounded({"type": "http.response.body", "body": body, "more_body": True})
        await bounded({"type": "http.response.body", "body": b"", "more_body": False})
