"""Lookahead over the wire delays nobody: what preparing waits for, whom it is done for together, and what ends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from draft_worker.plans import DrawSeconds
from engines.runtime.rows import Row
from testing.fakes.runner import FakeRunner
from testing.patience import PATIENCE
from testing.wire import async_test, pause
from testing.worker_apps import drafter
from tests.draft_worker.looking_ahead import GREEDY, PROMPT, drafted_together, give_time, prepared


@pytest.fixture(autouse=True)
def there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    give_time(monkeypatch)


@async_test
async def test_it_waits_for_every_call_and_ends_with_its_session() -> None:
    runner = FakeRunner(2)
    async with drafter(runner, slots=2) as worker:
        hold, entered = threading.Event(), threading.Event()
        trees: list[Sequence[Row]] = []

        def gate(rows: list[Row]) -> None:
            if any(row.parents is not None for row in rows):
                trees.append(rows)
                entered.set()
                assert hold.wait(PATIENCE)

        runner.gate = gate
        await worker.draft(ids=PROMPT, sampling=GREEDY, lookahead_tokens=8)
        assert await asyncio.to_thread(entered.wait, PATIENCE)
        # Two others come while a pass of it runs: they take the next passes, and one of them its slot.
        others = [
            asyncio.create_task(
                worker.draft(ids=[place, 7, 8], sampling=GREEDY, session_id=f"s{place}", draft_tokens=8)
            )
            for place in (1, 2)
        ]
        while await worker.metric("tandem_draft_num_requests_waiting") < len(others):
            await pause()
        await pause()  # what is submitted in a turn of the event loop is handed to the engine at its end
        hold.set()
        await asyncio.gather(*others)
        assert len(trees) == 1, "no pass of it while others had something to feed, and none once its slot was wanted"
        assert (await worker.client.delete("/v1/sessions/s")).status_code == 204
        seen = len(runner.passes)
        await prepared(worker)
        assert len(runner.passes) == seen


@async_test
async def test_a_session_that_is_deleted_ends_what_it_prepares() -> None:
    runner = FakeRunner(2)
    async with drafter(runner, slots=2) as worker:
        hold, entered = threading.Event(), threading.Event()

        def gate(rows: list[Row]) -> None:
            if any(row.parents is not None for row in rows):
                entered.set()
                assert hold.wait(PATIENCE)

        runner.gate = gate
        await worker.draft(ids=PROMPT, sampling=GREEDY, lookahead_tokens=16)
        assert await asyncio.to_thread(entered.wait, PATIENCE)
        assert (await worker.client.delete("/v1/sessions/s")).status_code == 204
        for _ in range(20):
            await pause()  # what was cancelled hears of it once the event loop has gone round
        passes = len(runner.passes)
        hold.set()
        await prepared(worker)
        assert len(runner.passes) == passes
        assert await worker.metric("tandem_draft_num_requests_running") == 0


@async_test
async def test_a_failing_engine_fails_what_is_prepared_and_nothing_else() -> None:
    runner = FakeRunner(2)
    async with drafter(runner, slots=2) as worker:

        def gate(rows: list[Row]) -> None:
            if any(row.parents is not None for row in rows):
                raise RuntimeError("broken on purpose")

        runner.gate = gate
        first = (await worker.draft(ids=PROMPT, sampling=GREEDY, lookahead_tokens=4))["candidates"][0]["token_ids"]
        await prepared(worker)
        answer = await worker.draft(ids=[*PROMPT, first[0], 30], held=8, round=1, sampling=GREEDY, lookahead_tokens=4)
        assert answer["source"] == "model"
        assert len(answer["candidates"][0]["token_ids"]) == 4


@async_test
async def test_a_batch_looks_ahead_for_all_its_items_in_the_same_passes() -> None:
    count = 6
    async with drafter(slots=count + 1) as worker:
        texts = [[place, *PROMPT] for place in range(count)]
        answers = await drafted_together(worker, texts, 0, 0)
        drawn = len(worker.runner.passes)
        await prepared(worker)
        assert len(worker.runner.passes) > drawn
        for rows in worker.runner.passes[drawn:]:
            assert len({row.slot for row in rows}) == count, "all grow together"
        for place, answer in enumerate(answers):
            texts[place] += answer["candidates"][0]["token_ids"]
            own = await worker.draft(ids=texts[place], session_id="o", round=place, draft_tokens=1, sampling=GREEDY)
            texts[place] += own["candidates"][0]["token_ids"]
        answers = await drafted_together(worker, texts, 1, 1 + len(PROMPT))
        assert [answer["parts"] for answer in answers] == [[{"source": "cache", "tokens": 2}]] * count


@async_test
async def test_nothing_is_prepared_before_all_of_a_batch_is_answered() -> None:
    """An item whose draft is there, beside one that has to be drawn."""
    async with drafter(slots=4) as worker:
        texts = [[place, *PROMPT] for place in range(2)]
        answers = await drafted_together(worker, texts, 0, 0)
        await prepared(worker)
        for place, answer in enumerate(answers):
            texts[place] += answer["candidates"][0]["token_ids"]
        own = await worker.draft(ids=texts[0], session_id="o", draft_tokens=1, sampling=GREEDY)
        texts[0] += own["candidates"][0]["token_ids"]
        texts[1] = [*texts[1][:-2], 29, 28, 27]
        worker.runner.passes.clear()
        seen: list[set[int]] = []
        worker.runner.gate = lambda rows: seen.append({row.slot for row in rows})
        first, second = await drafted_together(worker, texts, 1, 1 + len(PROMPT))
        assert (first["source"], second["source"]) == ("cache", "model")
        await prepared(worker)
        assert [len(slots) for slots in seen[:2]] == [1, 1], "the two passes of the one that was drawn"
        assert {len(slots) for slots in seen[2:]} == {2}


@async_test
async def test_nothing_is_prepared_before_others_calls_are_answered() -> None:
    async with drafter(slots=4) as worker:
        whole = await worker.draft(ids=[0, *PROMPT], session_id="w", sampling=GREEDY, draft_tokens=9)
        text = [0, *PROMPT, *whole["candidates"][0]["token_ids"]]
        await drafted_together(worker, [text[:9]], 0, 0)
        await prepared(worker)
        hold, entered = threading.Event(), threading.Event()
        passes: list[set[int]] = []

        def gate(rows: list[Row]) -> None:
            passes.append({row.slot for row in rows})
            entered.set()
            assert hold.wait(PATIENCE)

        worker.runner.gate = gate
        others = [
            asyncio.create_task(worker.draft(ids=[place] * 30, sampling=GREEDY, session_id=f"o{place}"))
            for place in (1, 2)
        ]
        assert await asyncio.to_thread(entered.wait, PATIENCE)
        (there,) = await drafted_together(worker, [text[:12]], 1, 9)
        assert there["source"] == "cache"
        hold.set()
        await asyncio.gather(*others)
        await prepared(worker)
        first = next(number for number, slots in enumerate(passes) if len(slots) == 1)
        assert first > 1
        assert not passes[first] & set().union(*passes[:first]), "its own, once the others are answered"
        assert all(slots == passes[first] for slots in passes[first:])


@async_test
async def test_no_pass_is_begun_that_would_be_under_way_when_the_next_call_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with drafter() as worker:
        first = (await worker.draft(ids=PROMPT, sampling=GREEDY, lookahead_tokens=4))["candidates"][0]["token_ids"]
        await prepared(worker)
        # From here on a pass is known to take longer than the time between the calls just made and to come.
        monkeypatch.setattr(DrawSeconds, "of", lambda self, rows: 2 * PATIENCE)
        ids = [*PROMPT, first[0], 30]
        worker.runner.passes.clear()
        await worker.draft(ids=ids, held=len(PROMPT), round=1, sampling=GREEDY, lookahead_tokens=4)
        await prepared(worker)
        assert len(worker.runner.passes) == 4, "those that drew the draft"
