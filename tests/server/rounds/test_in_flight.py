"""Verifications that are sent before the last verdict is back: the text is the target's, whatever becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from protocol.messages import VerifyRequest
from server.fleet_backend import Fleet
from testing.fakes.worker import Answer, Cut, FakeWorker, error
from testing.patience import until
from testing.wire import pause
from tests.server.fleet.harness import collect, expected, fleet_over, request, tokens

SECONDS = 0.02


def workers(wrong: float = 0.0, **changes: Any) -> tuple[FakeWorker, FakeWorker]:
    target, draft = FakeWorker("target"), FakeWorker("draft", wrong=wrong)
    target.ahead = draft.ahead = True
    target.seconds = SECONDS
    for name, value in changes.items():
        setattr(target, name, value)
    return target, draft


def followed(target: FakeWorker) -> list[VerifyRequest]:
    return [call for _, call in target.calls if isinstance(call, VerifyRequest) and call.follows is not None]


def counted(fleet: Fleet, outcome: str) -> float:
    return float(fleet._metrics.verifications_ahead.labels(outcome)._value.get())


pytestmark = pytest.mark.usefixtures("far_away")


@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("adaptive", [False, True])
def test_text_is_the_targets(wrong: float, adaptive: bool) -> None:
    async def main() -> None:
        target, draft = workers(wrong)
        async with fleet_over([target], [draft], lookahead="on") as fleet:
            rounds = await collect(fleet, request(60, adaptive=adaptive))
            assert tokens(rounds) == expected(60)
            sent = followed(target)
            assert sent or adaptive
            if wrong == 0.0:
                assert counted(fleet, "used") > 3
                assert counted(fleet, "used") == sum(
                    round_.parts == (("model", round_.num_drafted),) for round_ in rounds
                )
            assert [call.round for _, call in target.calls] == sorted({call.round for _, call in target.calls})

    asyncio.run(main())


@pytest.mark.parametrize("max_tokens", range(4, 14))
def test_max_tokens_is_exact(max_tokens: int) -> None:
    async def main() -> None:
        target, draft = workers()
        async with fleet_over([target], [draft], lookahead="on") as fleet:
            rounds = await collect(fleet, request(max_tokens))
            assert tokens(rounds) == expected(max_tokens)
            assert rounds[-1].stop_reason == "length"

    asyncio.run(main())


@pytest.mark.parametrize("stop_at", range(16, 26))
def test_a_stop_token_ends_it(stop_at: int) -> None:
    async def main() -> None:
        target, draft = workers(stop_at=stop_at)
        async with fleet_over([target], [draft], lookahead="on") as fleet:
            rounds = await collect(fleet, request())
            assert tokens(rounds)[:-1] == expected(stop_at - 8)
            assert rounds[-1].stop_reason == "stop_token"

    asyncio.run(main())


async def refuse(worker: FakeWorker, asked: VerifyRequest) -> Answer:
    raise error(400, "unsupported", field="follows")


async def fail(worker: FakeWorker, asked: VerifyRequest) -> Answer:
    raise error(503, "engine_failure")


async def never(worker: FakeWorker, asked: VerifyRequest) -> Answer:
    raise error(409, "not_followed")


async def cut(worker: FakeWorker, asked: VerifyRequest) -> Answer:
    raise Cut


async def lie(worker: FakeWorker, asked: VerifyRequest) -> Answer:
    """A target that takes the last alternative, whatever its verdict was."""
    session, alternative = asked.session_id or "", asked.alternatives[-1]
    while worker.answered.get(session, -1) < (asked.follows or 0):
        await pause()
        if (session, asked.follows) in worker.unfollowed:
            break
    if worker.rounds[session] != asked.follows:  # another round has come since: no verdict of an old one may undo it
        worker.unfollowed.add((session, asked.round))
        raise error(409, "not_followed")
    plain = asked.following(alternative)
    assert plain is not None
    held = worker.sessions[session]
    worker.rounds[session] = asked.round
    answer = worker.verify(plain, [*held[: asked.context.start], *alternative.token_ids])
    return {**answer, "candidate": len(asked.alternatives) - 1}


async def mislead(worker: FakeWorker, asked: VerifyRequest) -> Answer:
    """A target that claims to have judged more than was drafted."""
    answer = await FakeWorker.follow(worker, asked)
    return {**answer, "num_drafted": answer["num_drafted"] + 1}


@pytest.mark.parametrize("fault", [refuse, fail, never, cut, lie, mislead])
@pytest.mark.parametrize("wrong", [0.0, 0.3])
def test_whatever_goes_wrong_with_them_an_ordinary_round_does_it(
    fault: Callable[[FakeWorker, VerifyRequest], Awaitable[Answer]], wrong: float
) -> None:
    async def main() -> None:
        target, draft = workers(wrong)
        target.follow = lambda asked: fault(target, asked)  # type: ignore[method-assign]
        async with fleet_over([target], [draft], lookahead="on") as fleet:
            rounds = await collect(fleet, request())
            assert tokens(rounds) == expected()
            assert followed(target)

    asyncio.run(main())


def test_a_target_that_dies_with_one_in_flight() -> None:
    async def main() -> None:
        (target, draft), (other, _) = workers(), workers()
        async with fleet_over([target, other], [draft], lookahead="on") as fleet:
            found = []
            async for round_ in fleet.rounds(request(80)):
                found.append(round_)
                serving = max(target, other, key=lambda one: len(one.calls))
                if len(found) == 6:
                    await serving.kill()
            assert tokens(found) == expected(80)
            assert followed(target)
            assert followed(other)

    asyncio.run(main())


@pytest.mark.parametrize("settings", [{"lookahead": "off"}, {"lookahead": "on", "verifications_in_flight": 1}])
def test_none_is_sent_unless_it_is_wanted(settings: dict[str, Any]) -> None:
    async def main() -> None:
        target, draft = workers()
        async with fleet_over([target], [draft], **settings) as fleet:
            assert tokens(await collect(fleet, request())) == expected()
            assert not followed(target)

    asyncio.run(main())


@pytest.mark.parametrize("old", ["target", "draft"])
def test_workers_that_do_not_know_them_are_not_asked(old: str) -> None:
    async def main() -> None:
        target, draft = workers()
        (target if old == "target" else draft).ahead = False
        bodies: list[bytes] = []
        call = target.call

        async def note(path: str, body: bytes, send: Any) -> None:
            bodies.append(body)
            await call(path, body, send)

        target.call = note  # type: ignore[method-assign]
        async with fleet_over([target], [draft], lookahead="on") as fleet:
            assert tokens(await collect(fleet, request())) == expected()
            assert bodies
            assert not any(b"follows" in body or b"alternatives" in body for body in bodies)

    asyncio.run(main())


def test_a_client_that_leaves_leaves_nothing_in_flight() -> None:
    async def main() -> None:
        target, draft = workers()
        async with fleet_over([target], [draft], lookahead="on") as fleet:
            rounds = fleet.rounds(request(4000))
            async for _ in rounds:
                if len(followed(target)) > 3:
                    break
            await rounds.aclose()  # type: ignore[attr-defined]
            await until(lambda: not target.running and not draft.running)
            await until(lambda: not target.sessions and not draft.sessions)

    asyncio.run(main())
