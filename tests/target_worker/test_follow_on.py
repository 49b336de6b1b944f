"""Verifications that wait one behind the other: each begins when the one before it has its verdict, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from testing.wire import async_test, pause, request
from testing.worker_apps import STOP, Target, target
from tests.target_worker.test_follow import PROMPT, SAMPLING, Held, following, plain, under_way
from worker.sessions import MOST_HELD

EACH = 3
"""Tokens that each verification brings if its draft is right."""


def chained(text: list[int], number: int, *others: tuple[list[int], list[int]], **fields: Any) -> dict[str, Any]:
    """Round `number`, which follows the one before it where all went as `text` has it; `others`: alternatives before
    the one that says so."""
    start = EACH * (number - 1)
    right = (text[start : start + EACH], text[start + EACH : start + 2 * EACH - 1])
    ids = [*PROMPT, *text[:start]]
    return following(*others, right, **{"ids": ids, "held": len(ids), "round": number, "follows": number - 1, **fields})


async def post(worker: Target, message: dict[str, Any]) -> asyncio.Future[Any]:
    """Sent, and held by the worker."""
    sent = asyncio.ensure_future(worker.post("/v1/verify", request(**message)))
    for _ in range(20):
        await pause()
    return sent


def code(answer: tuple[int, Any]) -> Any:
    return answer[1]["error"]["code"] if answer[0] != 200 else None


@async_test
async def test_each_goes_on_from_the_one_before_it() -> None:
    async with target() as worker:
        text = await plain(worker, 18)
        held, first = await under_way(worker, text[:2])
        sent = [await post(worker, chained(text, number)) for number in range(1, MOST_HELD + 1)]
        assert held.passes == 1
        held.open.set()
        answers = [await answer for answer in sent]
        assert (await first)["token_ids"] == text[:3]
        for number, (status, answer) in enumerate(answers, 1):
            assert status == 200, answer
            assert (answer["round"], answer["num_accepted"]) == (number, 2)
            assert answer["token_ids"] == text[EACH * number : EACH * (number + 1)]
        assert held.passes == 1 + MOST_HELD
        last = await worker.verify(ids=[*PROMPT, *text[:15]], held=len(PROMPT) + 12, round=9, sampling=SAMPLING)
        assert last["token_ids"] == text[15:16]


@async_test
async def test_one_that_assumed_another_verdict_is_never_begun() -> None:
    """Nor are those behind it, whatever alternative of the one before came true."""
    async with target() as worker:
        text = await plain(worker, 12)
        wrong = (text[2] + 1) % STOP
        held, first = await under_way(worker, text[:2])
        other = [*text[:2], wrong]
        second = await post(worker, chained(text, 1, (other, text[3:5])))
        assumes = {"ids": [*PROMPT, *other], "held": len(PROMPT) + EACH}
        third = await post(worker, chained(text, 2, **assumes))
        fourth = await post(worker, chained(text, 3))
        held.open.set()
        assert (await first)["token_ids"] == text[:3]
        assert (await second)[1]["token_ids"] == text[3:6]
        assert [code(await third), code(await fourth)] == ["not_followed"] * 2
        assert held.passes == 2
        again = await worker.verify(ids=[*PROMPT, *text[:6]], held=len(PROMPT) + 3, round=4, sampling=SAMPLING)
        assert again["token_ids"] == text[6:7]


@async_test
async def test_if_one_is_not_followed_none_behind_it_is() -> None:
    async with target() as worker:
        text = await plain(worker, 12)
        wrong = (text[2] + 1) % STOP
        held, first = await under_way(worker, text[:2])
        sent = [await post(worker, following(([*text[:2], wrong], text[3:5])))]
        sent += [await post(worker, chained(text, number)) for number in (2, 3)]
        held.open.set()
        assert (await first)["token_ids"] == text[:3]
        assert [code(await answer) for answer in sent] == ["not_followed"] * 3
        assert held.passes == 1


@async_test
async def test_no_more_than_a_few_are_held() -> None:
    async with target() as worker:
        text = await plain(worker, 21)
        held, first = await under_way(worker, text[:2])
        sent = [await post(worker, chained(text, number)) for number in range(1, MOST_HELD + 1)]
        status, answer = await worker.post("/v1/verify", request(**chained(text, MOST_HELD + 1)))
        assert (status, answer["error"]["code"]) == (409, "not_followed")
        assert "waiting already" in answer["error"]["message"]
        held.open.set()
        await first
        assert [(await answer)[0] for answer in sent] == [200] * MOST_HELD


@async_test
async def test_a_retry_joins_and_another_takes_the_place_of_all_behind_it() -> None:
    async with target() as worker:
        text = await plain(worker, 12)
        held, first = await under_way(worker, text[:2])
        second = await post(worker, chained(text, 1))
        third, fourth = await post(worker, chained(text, 2)), await post(worker, chained(text, 3))
        joined = await post(worker, chained(text, 2))
        assert not any(one.done() for one in (second, third, fourth, joined))
        another = await post(worker, chained(text, 2, (text[3:5], [1]), round=7))
        assert [code(await one) for one in (third, joined, fourth)] == ["not_followed"] * 3
        held.open.set()
        assert (await first)["token_ids"] == text[:3]
        assert (await second)[1]["token_ids"] == text[3:6]
        assert (await another)[1]["token_ids"] == text[6:9]
        assert held.passes == 3


@async_test
async def test_retries_of_all_get_the_same_answers() -> None:
    async with target() as worker:
        text = await plain(worker, 12)
        held, first = await under_way(worker, text[:2])
        sent = [await post(worker, chained(text, number)) for number in (1, 2, 3, 1, 2, 3)]
        held.open.set()
        answers = [await answer for answer in sent]
        await first
        assert [status for status, _ in answers] == [200] * 6
        assert answers[:3] == answers[3:]
        assert held.passes == 4


@pytest.mark.parametrize("how", ["deleted", "overtaken", "left", "its caller left", "late"])
@async_test
async def test_what_ends_one_ends_all_behind_it(how: str) -> None:
    async with target() as worker:
        text = await plain(worker, 12)
        held = Held(worker)
        asked = request(ids=PROMPT, candidates=[{"token_ids": text[:2]}], sampling=SAMPLING)
        first = asyncio.ensure_future(worker.post("/v1/verify", asked))
        while not held.passes:
            await pause()
        deadline = {"deadline_ms": 40} if how == "late" else {}
        second = await post(worker, chained(text, 1, **deadline))
        third, fourth = await post(worker, chained(text, 2)), await post(worker, chained(text, 3))
        other: asyncio.Future[Any] | None = None
        if how == "deleted":
            other = asyncio.ensure_future(worker.client.delete("/v1/sessions/s"))
        elif how == "overtaken":
            message = request(ids=[*PROMPT, 9], held=len(PROMPT), round=5, candidates=[], sampling=SAMPLING)
            other = asyncio.ensure_future(worker.post("/v1/verify", message))
        elif how == "left":
            first.cancel()
        elif how == "its caller left":
            second.cancel()
        else:
            assert code(await second) == "deadline_exceeded"
        for _ in range(20):
            await pause()
        if how in ("its caller left", "late"):
            assert third.done(), "it is known by now"
            assert fourth.done()
        held.open.set()
        assert [code(await third), code(await fourth)] == ["not_followed"] * 2
        if how in ("its caller left", "late"):
            assert (await first)[1]["token_ids"] == text[:3]
        elif how != "left":
            assert code(await second) == "not_followed"
        if other is not None:
            await other
        assert held.passes <= 1 + (how == "overtaken")
        message = request(ids=[*PROMPT, *text[:3]], session_id="t", sampling=SAMPLING)
        assert (await worker.post("/v1/verify", message))[1]["token_ids"] == text[3:4], "nothing hangs"


@async_test
async def test_max_tokens_ends_a_chain() -> None:
    """Each counts from its own context."""
    async with target() as worker:
        text = await plain(worker, 12)
        held, first = await under_way(worker, text[:2], max_tokens=8)
        sent = [await post(worker, chained(text, number, max_tokens=8 - EACH * (number - 1))) for number in (1, 2)]
        sent.append(await post(worker, chained(text, 3, max_tokens=2)))
        held.open.set()
        await first
        assert (await sent[0])[1]["token_ids"] == text[3:6]
        last = (await sent[1])[1]
        assert (last["token_ids"], last["stop_reason"]) == (text[6:8], "length")
        assert code(await sent[2]) == "not_followed"
