"""The `history` drafter, over the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from testing.wire import async_test, request
from testing.worker_apps import Drafter, drafter

MINE, OTHER = "a" * 32, "b" * 32
ANSWER = [5, 6, 7, 8, 9, 10, 11, 12, 13]


async def remember(worker: Drafter, token_ids: list[int], history: str = MINE) -> Any:
    status, body = await worker.post("/v1/remember", {"history": history, "token_ids": token_ids})
    assert status == 200, body
    return body


def drafted(answer: Any) -> tuple[str, list[int]]:
    candidates = answer["candidates"]
    return answer["source"], candidates[0]["token_ids"] if candidates else []


@async_test
async def test_it_drafts_what_the_same_scope_was_answered_and_nobody_elses() -> None:
    async with drafter(lookup=True) as worker:
        assert await remember(worker, ANSWER) == {"remembered": True}
        asked = {"ids": [1, 5, 6, 7], "draft_tokens": 4}
        assert drafted(await worker.draft(**asked, history=MINE)) == ("history", [8, 9, 10, 11])
        assert drafted(await worker.draft(**asked, history=OTHER, round=1)) == ("lookup", [])
        assert drafted(await worker.draft(**asked, round=2)) == ("lookup", []), "no scope, no memory"
        assert await worker.metric("tandem_draft_history_tokens") == len(ANSWER) + 1
        assert (await worker.client.get("/v1/model")).json()["capabilities"]["history"] is True


@async_test
async def test_its_q_is_one_hot_and_the_grammar_of_candidates_holds() -> None:
    async with drafter(lookup=True) as worker:
        await remember(worker, ANSWER)
        answer = await worker.draft(ids=[5, 6, 7], draft_tokens=2, history=MINE, want_q=True)
        (candidate,) = answer["candidates"]
        assert [(top["token_ids"], top["logprobs"]) for top in candidate["q"]] == [([8], [0.0]), ([9], [0.0])]


@async_test
async def test_off_is_off() -> None:
    async with drafter(lookup=True, history_mb=0) as worker:
        assert await remember(worker, ANSWER) == {"remembered": False}
        assert drafted(await worker.draft(ids=[5, 6, 7], history=MINE)) == ("lookup", [])
        assert (await worker.client.get("/v1/model")).json()["capabilities"]["history"] is False


@async_test
async def test_a_restart_forgets_unless_a_file_is_named(tmp_path: Path) -> None:
    for settings, source in (({}, "lookup"), ({"history_file": tmp_path / "history"}, "history")):
        async with drafter(lookup=True, **settings) as worker:
            await remember(worker, ANSWER)
        async with drafter(lookup=True, **settings) as worker:
            assert drafted(await worker.draft(ids=[5, 6, 7], history=MINE))[0] == source


@async_test
async def test_what_is_no_scope_or_no_token_is_refused_by_name() -> None:
    async with drafter(lookup=True) as worker:
        for message, field in (
            ({"history": "mine", "token_ids": [1]}, "history"),
            ({"history": MINE, "token_ids": [-1]}, "token_ids.0"),
            ({"history": MINE, "token_ids": [1], "more": 1}, "more"),
        ):
            status, body = await worker.post("/v1/remember", message)
            assert (status, body["error"]["field"]) == (422, field)
        status, body = await worker.post("/v1/draft", request([1], draft_tokens=1, history="A" * 32))
        assert (status, body["error"]["field"]) == (422, "history")
