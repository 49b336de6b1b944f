"""The rules of sessions (docs/wire.md): what is held, what is refused, one call at a time, bounds."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadRequest, ContextMismatch, DeadlineExceeded, NotReady, StaleRound
from protocol.hashing import PrefixHashes
from protocol.messages import VerifyRequest
from testing.patience import until
from testing.wire import async_test, request
from worker.calls import Call
from worker.session import Session
from worker.sessions import SessionTable


def verify_request(ids: list[int], **fields: Any) -> VerifyRequest:
    return VerifyRequest.model_validate_json(json.dumps(request(ids, **{"candidates": [], **fields})))


class Table:
    """A table whose work is an event to set, and a note of every session dropped."""

    def __init__(self, max_sessions: int = 8, max_tokens: int = 1000, idle_seconds: float = math.inf) -> None:
        self.dropped: list[int] = []
        self.sessions: SessionTable[None] = SessionTable(
            lambda: None, lambda session: self.dropped.append(session.serial), max_sessions, max_tokens, idle_seconds
        )

    async def call(self, message: VerifyRequest, emits: tuple[int, ...] = (), **options: Any) -> list[int]:
        """Begin and end at once: the ids the session then had."""

        async def work(session: Session[None]) -> list[int]:
            ids = list(session.ids)
            session.emit(list(emits))
            return ids

        return await self.sessions.result(await self.sessions.start(message, work, **options))

    async def hang(self, message: VerifyRequest, ended: Callable[[], None] = lambda: None) -> Call:
        """A call that ends only when it is cancelled."""

        async def work(session: Session[None]) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended()

        call = await self.sessions.start(message, work)
        await asyncio.sleep(0)
        return call


def until_cancelled_and(release: asyncio.Event) -> Callable[[Session[None]], Awaitable[None]]:
    """Work that waits to be cancelled, and then for `release` before it ends."""

    async def work(session: Session[None]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()

    return work


@async_test
async def test_a_context_goes_on_from_any_held_index() -> None:
    table = Table()
    assert await table.call(verify_request([1, 2, 3]), emits=(4, 5)) == [1, 2, 3]
    assert await table.call(verify_request([1, 2, 3, 4, 9], held=4, round=1), emits=(6,)) == [1, 2, 3, 4, 9]
    assert await table.call(verify_request([1, 2], held=2, round=2)) == [1, 2], "shorter than what is held"
    assert await table.call(verify_request([1, 7, 8], held=1, round=3)) == [1, 7, 8], "what follows is replaced"


@async_test
async def test_a_prefix_that_is_not_held_is_a_mismatch_until_all_is_sent_again() -> None:
    table = Table()
    with pytest.raises(ContextMismatch):
        await table.call(verify_request([1, 2, 3], held=2))
    assert len(table.sessions) == 0, "a session that never read anything is not kept"
    await table.call(verify_request([1, 2, 3]))
    with pytest.raises(ContextMismatch) as mismatch:
        await table.call(verify_request([1, 9, 3, 4], held=3, round=1))
    assert mismatch.value.field == "context.prefix_hash"
    assert await table.call(verify_request([1, 9, 3, 4], round=1)) == [1, 9, 3, 4]


@async_test
async def test_the_hash_of_an_empty_prefix_is_checked_too() -> None:
    message = verify_request([1, 2])
    wrong = message.model_copy(update={"context": message.context.model_copy(update={"prefix_hash": "0" * 16})})
    with pytest.raises(BadRequest) as error:
        await Table().call(wrong)
    assert error.value.field == "context.prefix_hash"


@given(
    held=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    sent=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    data=st.data(),
)
def test_reading_gives_the_context_or_a_mismatch(held: list[int], sent: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(sent)))
    session: Session[None] = Session("s", None, None)
    session.emit(held)
    session.settle("index")
    context = verify_request(sent, held=start).context
    if held[:start] == sent[:start] and start <= len(held):
        session.read(context)
        assert session.ids == sent
        hashes = PrefixHashes()
        hashes.extend(sent)
        assert [session.hashes.at(i) for i in range(len(sent) + 1)] == [hashes.at(i) for i in range(len(sent) + 1)]
        unchanged = session.settle("index")
        assert held[:unchanged] == sent[:unchanged]
        assert unchanged == len(held) or unchanged == len(sent) or held[unchanged] != sent[unchanged]
    else:
        with pytest.raises(ContextMismatch):
            session.read(context)
        assert session.ids == held


@async_test
async def test_an_equal_round_in_flight_gets_the_same_answer() -> None:
    table = Table()
    gate = asyncio.Event()
    runs = 0

    async def work(session: Session[None]) -> object:
        nonlocal runs
        runs += 1
        await gate.wait()
        return object()

    calls = [await table.sessions.start(verify_request([1, 2], deadline_ms=1000 + i), work) for i in range(3)]
    answers = [asyncio.ensure_future(table.sessions.result(call)) for call in calls]
    await asyncio.sleep(0)
    answers[0].cancel()
    gate.set()
    _, second, third = await asyncio.gather(*answers, return_exceptions=True)
    assert second is third
    assert runs == 1


@async_test
async def test_a_retry_after_the_answer_is_served_again() -> None:
    table = Table()
    for _ in range(2):
        assert await table.call(verify_request([1, 2], round=3), emits=(5,)) == [1, 2]
    assert await table.call(verify_request([1, 2], held=2, round=3)) == [1, 2]


@pytest.mark.parametrize("other", [{"logprobs": 1}, {"ids": [1, 3]}, {"ids": [1, 2, 3]}])
@async_test
async def test_another_request_under_the_round_in_flight_is_refused(other: dict[str, Any]) -> None:
    table = Table()
    call = await table.hang(verify_request([1, 2]))
    with pytest.raises(BadRequest) as error:
        await table.call(verify_request(**{"ids": [1, 2], **other}))
    assert error.value.field == "round"
    call.task.cancel()


@async_test
async def test_a_lower_round_is_stale_in_flight_and_after() -> None:
    table = Table()
    await table.call(verify_request([1], round=5))
    with pytest.raises(StaleRound):
        await table.call(verify_request([1], round=4))
    call = await table.hang(verify_request([1], round=6))
    with pytest.raises(StaleRound):
        await table.call(verify_request([1], round=5))
    assert not call.task.done()
    call.task.cancel()


@async_test
async def test_a_higher_round_overtakes_the_one_in_flight_once_that_has_ended() -> None:
    table = Table()
    ends: list[str] = []
    call = await table.hang(verify_request([1, 2], round=1), lambda: ends.append("old"))
    old = asyncio.ensure_future(table.sessions.result(call))
    await asyncio.sleep(0)
    assert await table.call(verify_request([1, 2, 3], round=2)) == [1, 2, 3]
    assert ends == ["old"]
    with pytest.raises(StaleRound):
        await old


@async_test
async def test_of_several_newer_rounds_the_newest_is_served() -> None:
    table = Table()
    release = asyncio.Event()

    await table.sessions.start(verify_request([1], round=1), until_cancelled_and(release))
    await asyncio.sleep(0)
    newer = [asyncio.ensure_future(table.call(verify_request([1, i], round=i))) for i in (2, 4, 3)]
    await asyncio.sleep(0)
    release.set()
    two, four, three = await asyncio.gather(*newer, return_exceptions=True)
    assert isinstance(two, StaleRound)
    assert isinstance(three, StaleRound)
    assert four == [1, 4]


@async_test
async def test_a_call_that_will_not_end_costs_the_next_only_its_deadline() -> None:
    table = Table()
    release = asyncio.Event()

    await table.sessions.start(verify_request([1], round=1), until_cancelled_and(release))
    await asyncio.sleep(0)
    with pytest.raises(DeadlineExceeded):
        await table.call(verify_request([1], round=2, deadline_ms=20))
    release.set()
    assert await table.call(verify_request([1], round=2)) == [1]


@async_test
async def test_taking_over_replaces_a_call_of_the_same_round() -> None:
    table = Table()
    call = await table.hang(verify_request([1], round=1))
    old = asyncio.ensure_future(table.sessions.result(call))
    await asyncio.sleep(0)
    assert await table.call(verify_request([1], round=1), takes_over=True) == [1]
    with pytest.raises(StaleRound):
        await old


@async_test
async def test_the_last_waiter_to_leave_cancels_the_call() -> None:
    table = Table()
    ends: list[str] = []
    call = await table.hang(verify_request([1]), lambda: ends.append("end"))
    waiters = [asyncio.ensure_future(table.sessions.result(call)) for _ in range(2)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    await asyncio.sleep(0)
    assert not ends
    waiters[1].cancel()
    await asyncio.wait({call.task})
    assert ends == ["end"]
    assert await table.call(verify_request([1])) == [1], "the same round may come again"


@async_test
async def test_a_retry_that_meets_the_call_its_caller_left_is_served_anew() -> None:
    """The caller's departure cancels the call just as the retry comes, with the same session and round."""
    table = Table()
    release = asyncio.Event()

    call = await table.sessions.start(verify_request([1, 2]), until_cancelled_and(release))
    first = asyncio.ensure_future(table.sessions.result(call))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    assert not call.task.done()
    retries = [asyncio.ensure_future(table.call(verify_request([1, 2]))) for _ in range(2)]
    await asyncio.sleep(0)
    release.set()
    assert await asyncio.gather(*retries) == [[1, 2], [1, 2]]
    assert table.dropped == []


@async_test
async def test_a_cancelled_waiter_is_cancelled_even_if_its_call_was_overtaken() -> None:
    table = Table()
    call = await table.hang(verify_request([1]))
    waiter = asyncio.ensure_future(table.sessions.result(call))
    await asyncio.sleep(0)
    call.overtake("a test")
    waiter.cancel()
    await asyncio.wait({waiter})
    assert waiter.cancelled()


@async_test
async def test_waiters_of_a_call_that_closing_cancels_get_not_ready() -> None:
    table = Table()
    call = await table.hang(verify_request([1]))
    waiter = asyncio.ensure_future(table.sessions.result(call))
    await asyncio.sleep(0)
    await table.sessions.close(0.01)
    with pytest.raises(NotReady, match="shutting down"):
        await waiter


@async_test
async def test_without_an_id_nothing_is_kept() -> None:
    table = Table()
    assert await table.call(verify_request([1, 2], session_id=None)) == [1, 2]
    assert len(table.sessions) == 0
    with pytest.raises(ContextMismatch):
        await table.call(verify_request([1, 2], held=1, session_id=None))


@async_test
async def test_a_session_under_another_salt_starts_anew() -> None:
    table = Table()
    await table.call(verify_request([1, 2], salt="a"))
    with pytest.raises(ContextMismatch):
        await table.call(verify_request([1, 2, 3], held=2, salt="b", round=1))
    assert await table.call(verify_request([1, 2, 3], salt="b", round=1)) == [1, 2, 3]
    assert len(table.dropped) == 1


@async_test
async def test_the_least_recently_used_session_makes_room_never_one_in_flight() -> None:
    table = Table(max_sessions=2)
    busy = await table.hang(verify_request([1], session_id="busy"))
    await table.call(verify_request([1], session_id="a"))
    await table.call(verify_request([1], session_id="b"))
    assert table.sessions.get("busy") is not None
    assert table.sessions.get("a") is None
    assert table.sessions.get("b") is not None
    assert table.sessions.evictions == 1
    assert len(table.dropped) == 1
    busy.task.cancel()


@async_test
async def test_ids_held_are_bounded_in_all() -> None:
    table = Table(max_tokens=10)
    await table.call(verify_request([1] * 6, session_id="a"))
    assert table.sessions.tokens == 6
    await table.call(verify_request([1] * 3, session_id="b"), emits=(1, 1))
    await asyncio.sleep(0)
    assert table.sessions.get("a") is None
    assert table.sessions.tokens == 5


@async_test
async def test_deleting_ends_the_call_in_flight_and_is_idempotent() -> None:
    table = Table()
    ends: list[str] = []
    call = await table.hang(verify_request([1], round=4), lambda: ends.append("end"))
    answer = asyncio.ensure_future(table.sessions.result(call))
    await asyncio.sleep(0)
    assert await table.sessions.delete("s")
    assert ends == ["end"]
    with pytest.raises(StaleRound):
        await answer
    assert not await table.sessions.delete("s")
    assert table.sessions.tokens == 0
    assert len(table.dropped) == 1
    assert await table.call(verify_request([1], round=0)) == [1], "rounds begin anew"


@async_test
async def test_closing_cancels_what_does_not_end() -> None:
    table = Table()
    ends: list[str] = []
    await table.hang(verify_request([1]), lambda: ends.append("end"))
    await table.sessions.close(0.01)
    assert ends == ["end"]


@async_test
async def test_unused_sessions_expire_but_not_one_with_a_call_in_flight() -> None:
    table = Table(idle_seconds=0.02)
    await table.call(verify_request([1, 2, 3], session_id="left"))
    call = await table.hang(verify_request([1, 2, 3], session_id="busy"))
    await until(lambda: table.sessions.get("left") is None)
    assert len(table.dropped) == 1
    assert table.sessions.get("busy") is not None
    assert table.sessions.tokens == 0, "ids are counted once a call has ended"
    await table.sessions.close(0.0)
    assert call.task.cancelled()


@async_test
async def test_a_session_whose_first_call_is_abandoned_is_forgotten() -> None:
    """Its deletion may have come first, over another connection; a later call's loss costs nothing."""
    table = Table()
    first = await table.hang(verify_request([1, 2, 3]))
    first.waiters += 1
    table.sessions.leave(first)
    await asyncio.wait({first.task})
    await asyncio.sleep(0)
    assert (len(table.sessions), len(table.dropped), table.sessions.tokens) == (0, 1, 0)
    await table.call(verify_request([1, 2, 3]))
    second = await table.hang(verify_request([1, 2, 3], held=3, round=1))
    second.waiters += 1
    table.sessions.leave(second)
    await asyncio.wait({second.task})
    assert await table.call(verify_request([1, 2, 3], held=3, round=1)) == [1, 2, 3], "as the retry expects it"
