"""Work that ends when the client who asked for it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

from serving.tasks import let_go

T = TypeVar("T")

_CANCEL_SECONDS = 5.0
CLIENT_GONE_STATUS = 499
"""nginx's status for a client that left; it only appears in metrics."""


class ClientGone(Exception):
    """The client disconnected, or did not read for too long. No one is left to answer."""


async def until_client_leaves(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`. If the client leaves first, `work` is cancelled and ClientGone raised.

    The request's body must have been read: what comes after it is the disconnect.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(let_go)
    gone = asyncio.ensure_future(_disconnect(receive))
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
        del task  # an error's traceback has this frame, and the task has the error: a cycle


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
