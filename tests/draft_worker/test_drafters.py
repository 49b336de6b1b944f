"""The table of drafters: who is asked in which order, and what each may rely on."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import pytest

from draft_worker import service
from draft_worker.drafter import Asked, Means, certain
from draft_worker.drafters import DRAFTERS
from draft_worker.engine import Drafted
from testing.wire import async_test, request
from testing.worker_apps import drafter


class Counting:
    """A drafter for the test: what comes after 7 is 8, 9, …"""

    source: ClassVar[str] = "counting"

    @classmethod
    def of(cls, means: Means) -> Self:
        return cls()

    async def draft(self, asked: Asked) -> Drafted | None:
        if asked.ids[-1] != 7:
            return None
        return certain(asked, [[8 + place for place in range(asked.tokens)]])


@async_test
async def test_a_new_drafter_is_a_line_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "DRAFTERS", (Counting, *DRAFTERS))
    monkeypatch.setattr("draft_worker.metrics.DRAFTERS", (Counting, *DRAFTERS))
    async with drafter(lookup=True) as worker:
        answer = await worker.draft(ids=[1, 7], draft_tokens=3)
        assert (answer["source"], answer["candidates"][0]["token_ids"]) == ("counting", [8, 9, 10])
        assert await worker.metric("tandem_draft_spec_decode_num_drafts_total") == 1
        answer = await worker.draft(ids=[1, 2, 1, 2], draft_tokens=2, round=1)
        assert (answer["source"], answer["candidates"][0]["token_ids"]) == ("lookup", [1, 2])


@async_test
async def test_lookup_sees_what_changed_while_another_drafter_answered() -> None:
    """Its index holds for what it has seen itself, not for what stayed the same since anybody's last call."""
    first = [1, 2, 3, 4, 1, 2, 5, 1, 2]
    changed = [1, 2, 3, 4, 8, 9, 5, 8, 9]
    predicted: dict[str, Any] = {"prediction": {"token_ids": [*changed, 7]}}
    async with drafter(lookup=True) as worker:
        assert (await worker.draft(ids=first, draft_tokens=1))["candidates"][0]["token_ids"] == [5]
        answer = await worker.draft(ids=changed, draft_tokens=1, round=1, **predicted)
        assert answer["source"] == "prediction"
        off = [*changed, 20, 21, 22, 23, 24, 25, 1, 2]
        answer = await worker.draft(ids=off, draft_tokens=1, round=2)
    async with drafter(lookup=True) as worker:
        fresh = await worker.draft(ids=off, draft_tokens=1)
    assert answer["source"] == fresh["source"] == "lookup"
    assert answer["candidates"] == fresh["candidates"]


@async_test
async def test_reading_alone_gives_no_candidates_whoever_answers() -> None:
    async with drafter(lookup=True) as worker:
        status, body = await worker.post("/v1/draft", request([1, 2, 1, 2], draft_tokens=0))
        assert (status, body["source"], body["candidates"]) == (200, "lookup", [])
    async with drafter() as worker:
        status, body = await worker.post("/v1/draft", request([1, 2, 1, 2], draft_tokens=0))
        assert (status, body["source"], body["candidates"]) == (200, "model", [])
