"""How many requests are served at once."""

from __future__ import annotations

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError, Overloaded
from server.http.middleware import GENERATING_PATHS, send_error
from server.http.record import note_error
from server.metrics import GatewayMetrics

PATIENCE_SECONDS = 1.0
"""How long a body may take to arrive before its request's place may be given to another."""


class ConcurrencyLimit:
    """Refuses requests beyond `most` at once before any work is done for them.

    A request has its place from its first byte on, so that bodies are bounded too. So that clients who send half a body
    and wait can't take all places from everybody else, one of them gives way where there is no other place.
    """

    def __init__(self, app: ASGIApp, most: int, metrics: GatewayMetrics) -> None:
        self._app = app
        self._most = most
        self._metrics = metrics
        self._places: dict[_Place, None] = {}  # in the order of their arrival

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in GENERATING_PATHS:
            await self._app(scope, receive, send)
            return
        if len(self._places) >= self._most and not self._make_room():
            error = Overloaded(f"this server is busy with {self._most} requests: try again in a moment")
            note_error(scope, self._metrics, error)
            await send_error(error, send)
            return
        place = _Place(receive)
        self._places[place] = None
        try:
            await self._app(scope, place.receive, send)
        finally:
            self._places.pop(place, None)

    def _make_room(self) -> bool:
        latest = time.monotonic() - PATIENCE_SECONDS
        slow = next((place for place in self._places if not place.is_whole and place.since <= latest), None)
        if slow is None:
            return False
        slow.lost.set()
        del self._places[slow]
        return True


class _Place:
    """A request's place among those that are served, kept whatever comes once its body is whole."""

    def __init__(self, receive: Receive) -> None:
        self.since = time.monotonic()
        self.is_whole = False
        self.lost = asyncio.Event()
        self._receive = receive

    async def receive(self) -> Message:
        """The request's next message. Raises ApiError (408) if its place was given to another."""
        if self.is_whole:
            return await self._receive()
        waiting = asyncio.ensure_future(self._receive()), asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not waiting[0].done():
                message = "the request's body did not arrive in time, and others waited for its place"
                raise ApiError(message, status=408, code="request_timeout")
            found = waiting[0].result()
        finally:
            for task in waiting:
                task.cancel()
        self.is_whole = not found.get("more_body", False)
        return found
