"""Reading a request's body within a limit of bytes and of time."""

from __future__ import annotations

import asyncio

from fastapi import Request

from serving.disconnects import ClientGone

_MAX_DIGITS = 20


async def read_body(
    request: Request, *, max_bytes: int, seconds: float, too_large: Exception, too_late: Exception
) -> bytes:
    """The whole body.

    Raises `too_large` beyond `max_bytes` (before reading, if the header exceeds it already), `too_late` if it takes
    longer than `seconds`, and ClientGone.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:_MAX_DIGITS]) > max_bytes:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone("the client left before its request was whole")
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if size > max_bytes:
                    raise too_large
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise too_late from None
