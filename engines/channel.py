"""A bounded way out of a running job: from an engine's thread to one reader on an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    """The job asks `has_room` before it puts; reading makes room and wakes it. Iterate to read until it is closed."""

    def __init__(self, size: int, wake: Callable[[], None]) -> None:
        """`wake` is called, on the reader's thread, when there is room again."""
        self._items: deque[T] = deque()
        self._size = size
        self._wake = wake
        self._events = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._closed = False
        self._error: Exception | None = None

    def has_room(self) -> bool:
        return len(self._items) < self._size

    def put(self, item: T) -> None:
        """From any thread."""
        self._items.append(item)
        if not self._events.is_closed():
            self._events.call_soon_threadsafe(self._changed.set)

    def close(self, error: Exception | None = None) -> None:
        """No more will come; what is left can still be read, then `error` is raised, if any. On the reader's thread."""
        self._closed = True
        self._error = error
        self._changed.set()

    def __aiter__(self) -> Channel[T]:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._closed:
                raise StopAsyncIteration if self._error is None else self._error
            self._changed.clear()
            await self._changed.wait()
        was_full = not self.has_room()
        item = self._items.popleft()
        if was_full:
            self._wake()
        return item
