"""A request's choices, generated side by side and merged into one stream of deltas."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from types import TracebackType

from protocol.errors import WireError
from server.backend import RoundSource
from server.errors import ApiError, InternalError, TookTooLong, Unavailable, from_wire
from server.http.record import RequestRecord
from server.metrics import GatewayMetrics
from server.text.choice import Choice, Delta
from serving.tasks import TaskOwner

logger = logging.getLogger(__name__)

# Deltas that may wait for a slow reader, for each choice; beyond them generation waits too.
_QUEUED_DELTAS = 4


class Generation:
    """Runs while it is entered as a context; leaving stops whatever is still being generated.

    A reader that does not keep up holds generation back: deltas wait in a bounded queue.
    """

    def __init__(
        self,
        source: RoundSource,
        choices: Sequence[Choice],
        *,
        metrics: GatewayMetrics,
        background: TaskOwner,
        arrived: float,
        timeout: float,
        record: RequestRecord | None = None,
    ) -> None:
        """`arrived` is when the request came (time.monotonic()); `timeout` the seconds it may take from now. `record`
        is told of every round."""
        self.choices = choices
        self._source = source
        self._metrics = metrics
        self._background = background
        self._arrived = arrived
        self._record = record
        self._deadline = time.monotonic() + timeout
        self._queue: asyncio.Queue[Delta | ApiError] = asyncio.Queue(_QUEUED_DELTAS * len(choices))
        self._tasks: list[tuple[Choice, asyncio.Task[None]]] = []

    async def __aenter__(self) -> Generation:
        self._tasks = [(choice, self._background.start(self._run(choice))) for choice in self.choices]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A finished choice may still be freeing its sessions, which nobody needs to wait for.
        for choice, task in self._tasks:
            if choice.finish_reason is None:
                task.cancel()

    async def deltas(self, silence: float | None = None) -> AsyncIterator[Delta | None]:
        """Deltas of all choices as they come, None after every `silence` seconds without any.

        Ends when every choice has finished. Raises ApiError if one failed: the others are of no use then.
        """
        unfinished = len(self.choices)
        while unfinished:
            left = self._deadline - time.monotonic()
            wait = left if silence is None else min(silence, left)
            try:
                async with asyncio.timeout(wait):
                    item = await self._queue.get()
            except TimeoutError:
                if time.monotonic() >= self._deadline:
                    raise TookTooLong("the request took longer than this server allows") from None
                yield None
                continue
            if isinstance(item, ApiError):
                raise item
            if item.finish_reason is not None:
                unfinished -= 1
            yield item

    async def _run(self, choice: Choice) -> None:
        try:
            await self._pump(choice)
        except asyncio.CancelledError:
            # If the reader left, nobody reads this; else the server ends, and the client must learn of it.
            self._end_with(Unavailable("the server is shutting down: this answer is not complete"))
            raise
        except ApiError as error:
            await self._queue.put(error)
        except WireError as error:
            await self._queue.put(from_wire(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the client must learn of it
            # The message could hold text of the request: only where it happened is logged.
            where = "".join(traceback.format_tb(error.__traceback__))
            logger.error("generation failed: %s\n%s", type(error).__name__, where)
            await self._queue.put(InternalError("generation failed because of a fault in the server"))

    def _end_with(self, error: ApiError) -> None:
        """The next that is read. Deltas that still wait are dropped, as there may be no room: a prefix was sent."""
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(error)

    async def _pump(self, choice: Choice) -> None:
        with self._metrics.sequence(len(choice.request.prompt), self._arrived) as observed:
            rounds = self._source.rounds(choice.request)
            try:
                async for round in rounds:
                    delta = choice.push(round)
                    observed.round(round, choice, len(delta.token_ids))
                    if self._record is not None:
                        accepted = choice.counts.step_accepted[-1] if round.num_drafted else 0
                        self._record.add(round, len(delta.token_ids), accepted)
                    await self._queue.put(delta)
                    if delta.finish_reason is not None:
                        return
            finally:
                if isinstance(rounds, AsyncGenerator):
                    await rounds.aclose()
            choice.end()
