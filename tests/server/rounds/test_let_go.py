"""However a request with verifications in flight ends, nothing of it is left, without the garbage collector."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress

import pytest

from protocol.errors import WireError
from protocol.messages import VerifyRequest
from server.errors import NoTarget
from server.fleet.failures import WorkerFailure
from server.fleet_backend import Fleet
from server.rounds.context import RequestContext, WorkerSession
from server.rounds.draft_side import DraftSide
from server.rounds.flight import Flight, Flights, Preparing
from server.rounds.loop import RoundLoop
from server.rounds.sequence import TokenSequence
from server.rounds.target_side import TargetSide
from testing.fakes.worker import FakeWorker, error
from testing.garbage import all_gone, collector_off
from testing.patience import until
from tests.server.fleet.harness import collect, fleet_over, request
from tests.server.rounds.test_in_flight import cut, fail, lie, never, refuse, workers

KINDS = (
    RequestContext, WorkerSession, DraftSide, TargetSide, Flight, Flights, Preparing, RoundLoop, TokenSequence,
    WorkerFailure, WireError,
)  # fmt: skip
Workers = tuple[FakeWorker, FakeWorker]


pytestmark = pytest.mark.usefixtures("far_away")


async def to_its_end(fleet: Fleet, both: Workers) -> None:
    await collect(fleet, request(40))


async def given_up(fleet: Fleet, both: Workers) -> None:
    both[1].wrong = 0.4
    await collect(fleet, request(60))


def faulty(fault: Callable[..., Awaitable[object]]) -> Callable[[Fleet, Workers], Awaitable[None]]:
    async def way(fleet: Fleet, both: Workers) -> None:
        both[0].follow = lambda asked: fault(both[0], asked)  # type: ignore[method-assign, assignment, return-value]
        await collect(fleet, request(40))

    way.__name__ = fault.__name__
    return way


async def closed(fleet: Fleet, both: Workers) -> None:
    """Whoever reads it leaves in the middle."""
    async with aclosing(fleet.rounds(request(400))) as rounds:  # type: ignore[type-var]
        async for _ in rounds:
            if sum(isinstance(call, VerifyRequest) and call.follows is not None for _, call in both[0].calls) > 4:
                break


async def cancelled(fleet: Fleet, both: Workers) -> None:
    for seconds in (0.05, 0.13, 0.21):
        reading = asyncio.create_task(collect(fleet, request(400)))
        await asyncio.sleep(seconds)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


async def begun(target: FakeWorker) -> None:
    """More is sent to it than can be on its way at once: something has been answered."""
    calls = len(target.calls)
    await until(lambda: len(target.calls) > calls + 6)


async def without_its_draft_worker(fleet: Fleet, both: Workers) -> None:
    reading = asyncio.create_task(collect(fleet, request(80)))
    await begun(both[0])
    await both[1].kill()
    await reading
    await both[1].start()


async def without_its_target(fleet: Fleet, both: Workers) -> None:
    async def read() -> None:
        with pytest.raises(NoTarget):
            await collect(fleet, request(400))

    reading = asyncio.create_task(read())
    await begun(both[0])
    await both[0].kill()
    await reading
    await both[0].start()


async def refused(fleet: Fleet, both: Workers) -> None:
    both[0].always = error(400, "unsupported")  # whichever of those under way arrives first
    with pytest.raises(WireError):
        await collect(fleet, request(40))
    both[0].always = None


WAYS = [
    to_its_end, given_up, *map(faulty, (refuse, fail, never, cut, lie)), closed, cancelled, without_its_draft_worker,
    without_its_target, refused,
]  # fmt: skip


@pytest.mark.parametrize("in_flight", [2, 5])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_of_it_is_left(way: Callable[[Fleet, Workers], Awaitable[None]], in_flight: int) -> None:
    async def main() -> None:
        both = workers()
        settings = {"lookahead": "on", "verifications_in_flight": in_flight, "recovery_timeout_seconds": 0.5}
        async with fleet_over([both[0]], [both[1]], **settings) as fleet:
            await collect(fleet, request(8))
            with collector_off() as alive:
                await way(fleet, both)
                both[0].calls.clear()
                both[1].calls.clear()
                await until(lambda: not len(fleet._requests))
                await until(lambda: not both[0].running)
                await all_gone(alive, *KINDS)

    asyncio.run(main())
