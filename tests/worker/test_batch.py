"""Many rounds in one message: an answer for each, and one pass for all."""

from __future__ import annotations

import time
from typing import Any

import pytest

from engines.runtime.jobs import Job
from protocol.messages import VerifyResponse
from target_worker.runtime import engine as torch_engine
from target_worker.runtime.verify import verify_job
from testing.wire import async_test, request
from testing.worker_apps import target

PROMPT = [3, 1, 4, 1, 5]


@async_test
async def test_a_batch_answers_each_item_on_its_own() -> None:
    async with target() as worker:
        good = request(PROMPT, candidates=[], session_id="a")
        items: list[dict[str, Any]] = [
            good,
            {**good, "session_id": "b", "round": "x"},
            request([1, 99], candidates=[], session_id="c"),
            request(PROMPT, held=2, candidates=[], session_id="d"),
            {**good, "session_id": "e"},
        ]
        status, body = await worker.post("/v1/verify/batch", {"items": items})
        assert status == 200
        answers = body["items"]
        assert [(item["error"] or {}).get("field") for item in answers] == [
            None,
            "round",
            "context.token_ids.1",
            "context.start",
            None,
        ]
        assert [(item["error"] or {}).get("status") for item in answers] == [None, 422, 400, 409, None]
        assert answers[0]["response"]["token_ids"] == answers[4]["response"]["token_ids"]
        status, body = await worker.post("/v1/verify/batch", {"items": []})
        assert (status, body["error"]["field"]) == (422, "items")
        status, body = await worker.post("/v1/verify/batch", {"items": [good], "extra": 1})
        assert (status, body["error"]["field"]) == (422, "extra")


@async_test
async def test_the_items_of_a_batch_share_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_job(*args: Any) -> Job[VerifyResponse]:
        time.sleep(0.01)  # long enough for a pass to begin with the earlier items
        return verify_job(*args)

    monkeypatch.setattr(torch_engine, "verify_job", slow_job)
    async with target() as worker:
        items = [request([place, 5], candidates=[], session_id=f"s{place}") for place in range(4)]
        status, body = await worker.post("/v1/verify/batch", {"items": items})
        assert (status, [item["error"] for item in body["items"]]) == (200, [None] * 4)
        assert [len(rows) for rows in worker.runner.passes] == [4]
