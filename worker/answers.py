"""A worker's answers: JSON, JSON lines, and one shape of error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

from fastapi import Response
from pydantic import BaseModel
from starlette.types import Message, Receive, Scope, Send

from protocol.errors import QueueFull, WireError
from serving.disconnects import ClientGone, until_client_leaves
from worker.errors import Unauthorized

logger = logging.getLogger(__name__)

_RETRY_AFTER_SECONDS = 1


def json_response(reply: BaseModel, status: int = 200) -> Response:
    return Response(reply.__pydantic_serializer__.to_json(reply), status, media_type="application/json")


def error_response(error: WireError) -> Response:
    response = json_response(error.body(), error.status)
    if isinstance(error, QueueFull):
        response.headers["Retry-After"] = str(_RETRY_AFTER_SECONDS)
    if isinstance(error, Unauthorized):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


class LinesResponse(Response):
    """JSON lines, each sent as soon as there is one. A reader that leaves, or stalls, ends the iterator at once."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncGenerator[BaseModel, None], stall_seconds: float) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._lines = lines
        self._stall_seconds = stall_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_client_leaves(receive, self._send(send))
        except ClientGone:
            logger.debug("a client left its stream")
        except TimeoutError:
            # Returning in mid-answer makes the server close the connection.
            logger.warning("a client did not read its stream for %g s and was cut off", self._stall_seconds)
        finally:
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
