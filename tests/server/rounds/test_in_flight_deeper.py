"""Verifications that follow others in flight: the text is the target's, whatever becomes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from protocol.messages import DraftRequest, VerifyRequest
from server.rounds.adaptive.depth import Depth
from testing.fakes.worker import Answer, Cut, FakeWorker, error, reply
from testing.patience import until
from tests.server.fleet.harness import collect, expected, fleet_over, request, tokens
from tests.server.rounds.test_in_flight import SECONDS, cut, fail, followed, lie, mislead, never, refuse, workers

SLOW = 0.1
"""A pass beside which a chain of calls is short, on a busy machine too."""
Fault = Callable[[FakeWorker, VerifyRequest], Awaitable[Answer]]


pytestmark = pytest.mark.usefixtures("far_away")


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """What came of each that was sent, and how many others were under way then."""
    found: list[tuple[bool, int]] = []
    observe = Depth.observe

    def note(self: Depth, used: bool, others: int) -> None:
        found.append((used, others))
        observe(self, used, others)

    monkeypatch.setattr(Depth, "observe", note)
    return found


def used(observed: list[tuple[bool, int]], others: int) -> int:
    return observed.count((True, others))


class Holding:
    """Counts the verifications ahead that a target has at a time, the one that it judges among them, and does to the
    deeper ones what `fault` says."""

    def __init__(self, target: FakeWorker, fault: Fault | None = None) -> None:
        self.target, self.fault = target, fault
        self.held = self.most = self.deeper = 0
        target.follow = self.follow  # type: ignore[method-assign]

    async def follow(self, asked: VerifyRequest) -> Answer:
        deeper = self.held > 0
        self.deeper += deeper
        self.held += 1
        self.most = max(self.most, self.held)
        try:
            if deeper and self.fault is not None:
                return await self.fault(self.target, asked)
            return await FakeWorker.follow(self.target, asked)
        finally:
            self.held -= 1


def assumed(draft: FakeWorker) -> list[DraftRequest]:
    return [call for _, call in draft.calls if isinstance(call, DraftRequest) and call.assumed_tokens]


@pytest.mark.parametrize("wrong", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("adaptive", [False, True])
def test_text_is_the_targets(wrong: float, adaptive: bool, observed: list[tuple[bool, int]]) -> None:
    async def main() -> None:
        target, draft = workers(wrong, seconds=SLOW if wrong == 0.0 else SECONDS)
        holding = Holding(target)
        async with fleet_over([target], [draft], lookahead="on", verifications_in_flight=5) as fleet:
            assert tokens(await collect(fleet, request(80, adaptive=adaptive))) == expected(80)
        calls = {call.round: call for _, call in target.calls}
        assert list(calls) == sorted(calls)
        for call in followed(target):
            assert call.context.start > calls[call.follows or 0].context.start, "each follows one of a shorter text"
        if wrong == 0.0:
            assert holding.most == 5
            assert used(observed, 4) > 0

    asyncio.run(main())


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_no_more_are_under_way_than_is_wanted(most: int, observed: list[tuple[bool, int]]) -> None:
    async def main() -> None:
        target, draft = workers(seconds=SLOW)
        holding = Holding(target)
        async with fleet_over([target], [draft], lookahead="on", verifications_in_flight=most) as fleet:
            assert tokens(await collect(fleet, request(60))) == expected(60)
        assert holding.most == (most if most > 1 else 0)
        assert bool(assumed(draft)) == (most > 2)
        assert max((others for _, others in observed), default=0) == most - 1

    asyncio.run(main())


@pytest.mark.parametrize(("holds", "assumes"), [(1, True), (2, True), (4, False)])
def test_workers_that_can_do_less_are_asked_for_less(holds: int, assumes: bool) -> None:
    async def main() -> None:
        target, draft = workers(seconds=SLOW)
        target.holds, draft.holds = holds, 4 if assumes else 1
        holding = Holding(target)
        async with fleet_over([target], [draft], lookahead="on", verifications_in_flight=5) as fleet:
            assert tokens(await collect(fleet, request(60))) == expected(60)
        assert holding.most == (1 + holds if assumes else 2)
        if not assumes:
            told = [call for _, call in draft.calls if isinstance(call, DraftRequest)]
            assert not any(call.assumed_tokens is not None or call.lookahead_seconds is not None for call in told)

    asyncio.run(main())


@pytest.mark.parametrize("max_tokens", range(10, 30))
def test_max_tokens_is_exact(max_tokens: int) -> None:
    async def main() -> None:
        target, draft = workers()
        async with fleet_over([target], [draft], lookahead="on", verifications_in_flight=5) as fleet:
            rounds = await collect(fleet, request(max_tokens))
            assert tokens(rounds) == expected(max_tokens)
            assert rounds[-1].stop_reason == "length"

    asyncio.run(main())


@pytest.mark.parametrize("stop_at", range(24, 40))
def test_a_stop_token_ends_it(stop_at: int) -> None:
    async def main() -> None:
        target, draft = workers(stop_at=stop_at)
        async with fleet_over([target], [draft], lookahead="on", verifications_in_flight=5) as fleet:
            rounds = await collect(fleet, request())
            assert tokens(rounds)[:-1] == expected(stop_at - 8)
            assert rounds[-1].stop_reason == "stop_token"
            await until(lambda: not target.running and not target.sessions)

    asyncio.run(main())


@pytest.mark.parametrize("fault", [refuse, fail, never, cut, lie, mislead])
@pytest.mark.parametrize("wrong", [0.0, 0.2])
def test_whatever_goes_wrong_in_mid_chain_an_ordinary_round_does_it(fault: Fault, wrong: float) -> None:
    async def main() -> None:
        target, draft = workers(wrong, seconds=SLOW)
        holding = Holding(target, fault)
        async with fleet_over([target], [draft], lookahead="on", verifications_in_flight=5) as fleet:
            assert tokens(await collect(fleet, request(40))) == expected(40)
            await until(lambda: not target.running and not target.sessions)
        assert holding.deeper

    asyncio.run(main())


def misdrafts(worker: FakeWorker, asked: DraftRequest) -> Answer:
    answer = worker.draft(asked)
    answer["candidates"][0]["token_ids"][0] ^= 1
    return answer


def fails(worker: FakeWorker, asked: DraftRequest) -> Answer:
    raise error(503, "engine_failure")


def refuses(worker: FakeWorker, asked: DraftRequest) -> Answer:
    raise error(400, "unsupported", field="assumed_tokens")


def is_cut(worker: FakeWorker, asked: DraftRequest) -> Answer:
    raise Cut


def forgets(worker: FakeWorker, asked: DraftRequest) -> Answer:
    del worker.sessions[asked.session_id or ""]
    raise error(409, "context_mismatch")


@pytest.mark.parametrize("fault", [misdrafts, fails, refuses, is_cut, forgets])
def test_whatever_the_draft_worker_makes_of_what_is_assumed(
    fault: Callable[[FakeWorker, DraftRequest], Answer],
) -> None:
    async def main() -> None:
        target, draft = workers()
        call, count = draft.call, 0

        async def faulty(path: str, body: bytes, send: Any) -> None:
            nonlocal count
            asked = DraftRequest.model_validate_json(body) if path == "/v1/draft" else None
            if asked is None or not asked.assumed_tokens:
                return await call(path, body, send)
            count += 1
            if count % 2:
                return await call(path, body, send)
            try:
                answer = fault(draft, asked)
            except Cut:
                return await reply(send, 200, json.dumps(draft.draft(asked)).encode(), cut=True)
            return await reply(send, 200, json.dumps(answer).encode())

        draft.call = faulty  # type: ignore[method-assign]
        async with fleet_over([target], [draft], lookahead="on", verifications_in_flight=5) as fleet:
            assert tokens(await collect(fleet, request(80))) == expected(80)
        assert count > 1

    asyncio.run(main())


def test_a_target_that_dies_with_several_in_flight() -> None:
    async def main() -> None:
        (target, draft), (other, _) = workers(seconds=SLOW), workers(seconds=SLOW)
        holding = Holding(target), Holding(other)
        async with fleet_over([target, other], [draft], lookahead="on", verifications_in_flight=5) as fleet:
            found = []
            async for round_ in fleet.rounds(request(80)):
                found.append(round_)
                serving = max(target, other, key=lambda one: len(one.calls))
                if len(found) == 8:
                    await serving.kill()
            assert tokens(found) == expected(80)
            assert all(one.most > 1 for one in holding)

    asyncio.run(main())


def test_a_draft_worker_that_dies_with_several_in_flight() -> None:
    async def main() -> None:
        target, draft = workers(seconds=SLOW)
        holding = Holding(target)
        async with fleet_over([target], [draft], lookahead="on", verifications_in_flight=5) as fleet:
            found = []
            async for round_ in fleet.rounds(request(60)):
                found.append(round_)
                if len(found) == 8:
                    assert holding.most > 1
                    await draft.kill()
            assert tokens(found) == expected(60)

    asyncio.run(main())


def test_a_client_that_leaves_leaves_nothing_in_flight() -> None:
    async def main() -> None:
        target, draft = workers()
        holding = Holding(target)
        async with fleet_over([target], [draft], lookahead="on", verifications_in_flight=5) as fleet:
            rounds = fleet.rounds(request(4000))
            async for _ in rounds:
                if holding.held > 2:
                    break
            await rounds.aclose()  # type: ignore[attr-defined]
            await until(lambda: not target.running and not draft.running)
            await until(lambda: not target.sessions and not draft.sessions)

    asyncio.run(main())
