"""Workers that can stand in for one another."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

from server.fleet.worker import Worker

_REMEMBERED = 4096
_WORTH_WAITING = 4


class Pool:
    """Hands out the least loaded usable worker, or the one that has read the same text before."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = list(workers)
        self._homes: OrderedDict[str, Worker] = OrderedDict()
        self._changed = asyncio.Event()

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers)

    def pick(
        self, accept: Callable[[Worker], bool], prefixes: Sequence[str] = (), avoid: Collection[Worker] = ()
    ) -> Worker | None:
        """The least loaded usable worker that `accept` takes; None if there is none.

        `prefixes` are hashes of ever longer prefixes of the text: a worker that was remembered for one of them (the
        longest first) is taken unless it has clearly more to do. Workers in `avoid` are taken only if there is no
        other.
        """
        able = [worker for worker in self._workers if worker.usable and accept(worker)]
        able = [worker for worker in able if worker not in avoid] or able
        if not able:
            return None
        least = min(able, key=lambda worker: worker.streams)
        for prefix in reversed(prefixes):
            home = self._homes.get(prefix)
            if home in able and home is not None and home.streams <= least.streams + _WORTH_WAITING:
                return home
        return least

    def last_resort(self, accept: Callable[[Worker], bool]) -> Worker | None:
        """If `pick` finds none: the least loaded that `accept` takes, even with an open breaker."""
        able = (worker for worker in self._workers if worker.state == "ready" and accept(worker))
        return min(able, key=lambda worker: worker.streams, default=None)

    def remember(self, prefixes: Sequence[str], worker: Worker) -> None:
        """`worker` has read texts with these prefixes."""
        for prefix in prefixes:
            self._homes[prefix] = worker
            self._homes.move_to_end(prefix)
        while len(self._homes) > _REMEMBERED:
            self._homes.popitem(last=False)

    def notify(self) -> None:
        """Wake those that wait for a worker: one has changed its state."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self, seconds: float) -> None:
        """Until some worker changes its state, or the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
