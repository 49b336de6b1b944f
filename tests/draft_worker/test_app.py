"""The draft worker's app: which drafter serves a call, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from draft_worker.engine import Drafted
from draft_worker.runtime import engine as torch_engine
from draft_worker.runtime.draft import draft_job
from engines.runtime.jobs import Job
from protocol.errors import ErrorBody
from protocol.worker_info import ModelInfo
from testing.patience import PATIENCE
from testing.wire import async_test, request
from testing.worker_apps import drafter

REPEATING = [5, 1, 2, 3, 4, 5, 1, 2]


@async_test
async def test_lookup_needs_no_model_and_follows_the_session() -> None:
    async with drafter(lookup=True) as worker:
        info = ModelInfo.model_validate_json((await worker.client.get("/v1/model")).content)
        assert (info.id, info.vocabulary) == ("lookup", None)
        assert (await worker.client.get("/v1/tokenizer")).status_code == 404
        answer = await worker.draft(ids=REPEATING)
        assert answer["source"] == "lookup"
        assert [c["token_ids"] for c in answer["candidates"]] == [[3, 4, 5, 1]]
        ids = [*REPEATING, 3, 9, 9, 4, 5]
        answer = await worker.draft(ids=ids, held=len(REPEATING) + 1, round=1)
        assert [c["token_ids"] for c in answer["candidates"]] == [[1, 2, 3, 9]]
        assert (await worker.draft(ids=[7, 8], round=2))["candidates"] == []
        assert (await worker.draft(ids=REPEATING, round=3, draft_tokens=0))["candidates"] == []


@async_test
async def test_lookup_forgets_what_the_context_no_longer_has() -> None:
    async with drafter(lookup=True) as worker:
        assert (await worker.draft(ids=[5, 6, 1, 2, 3, 5, 6]))["candidates"][0]["token_ids"][:3] == [1, 2, 3]
        assert (await worker.draft(ids=[5, 7, 1, 2, 3, 5, 6], held=1, round=1))["candidates"] == []


def test_a_lookup_worker_does_not_import_torch() -> None:
    code = (
        "import sys; from config.workers import DraftWorkerConfig; from draft_worker.app import create_app;"
        "create_app(DraftWorkerConfig()); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


@async_test
async def test_copied_drafts_have_a_one_hot_q() -> None:
    async with drafter(lookup=True) as worker:
        (candidate,) = (await worker.draft(ids=REPEATING, want_q=True, draft_tokens=2))["candidates"]
        assert candidate["q"] == [{"token_ids": [3], "logprobs": [0.0]}, {"token_ids": [4], "logprobs": [0.0]}]


@async_test
async def test_a_request_picks_its_drafter() -> None:
    async with drafter() as worker:
        assert (await worker.draft(ids=REPEATING))["source"] == "model"
        assert (await worker.draft(ids=REPEATING, round=1, draft_model="lookup"))["source"] == "lookup"
        assert (await worker.draft(ids=REPEATING, round=2, draft_model="fake"))["source"] == "model"


@async_test
async def test_a_prediction_drafts_while_it_matches_and_is_sent_once() -> None:
    async with drafter() as worker:
        predicted = [10, 11, 12, 13, 14, 15, 16, 17]
        prompt = [1, 2, 3]
        fields: dict[str, Any] = {"num_prompt_tokens": 3, "draft_tokens": 3}
        answer = await worker.draft(ids=prompt, prediction={"token_ids": predicted}, **fields)
        assert answer["source"] == "prediction"
        assert answer["candidates"][0]["token_ids"] == [10, 11, 12]
        answer = await worker.draft(ids=[*prompt, 10, 11, 9], held=5, round=1, **fields)
        assert (answer["source"], answer["candidates"][0]["token_ids"]) == ("prediction", [13, 14, 15])
        answer = await worker.draft(ids=[*prompt, 10, 11, 9, 8, 7], held=6, round=2, **fields)
        assert answer["source"] == "model", "no match: the worker's own drafter"
        answer = await worker.draft(ids=[*prompt, 10, 11, 9, 8, 7, 12, 13], held=8, round=3, **fields)
        assert (answer["source"], answer["candidates"][0]["token_ids"]) == ("prediction", [14, 15, 16])


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"draft_tokens": 33}, 422, "draft_tokens"),
        ({"num_candidates": 9}, 422, "num_candidates"),
        ({"draft_model": "other"}, 400, "draft_model"),
        ({"lookahead_tokens": 1, "num_candidates": 2}, 400, "lookahead_tokens"),
        ({"prepared_tokens": 1, "num_candidates": 2}, 400, "prepared_tokens"),
        ({"prepared_tokens": 1, "want_q": True}, 400, "prepared_tokens"),
        ({"prepared_tokens": 1, "draft_model": "auto"}, 400, "prepared_tokens"),
        ({"want_q": True, "num_candidates": 2}, 400, "num_candidates"),
        ({"grammar": {"type": "regex", "value": "a", "start": 0}}, 400, "grammar.type"),
        ({"ids": [1, 32]}, 400, "context.token_ids.1"),
        ({"sampling": {"logit_bias": {"32": 1.0}}}, 400, "sampling.logit_bias.32"),
        ({"sampling": {"stop_token_ids": [3, 40]}}, 400, "sampling.stop_token_ids.1"),
        ({"grammar": {"type": "json_object", "value": "{}", "start": 0}}, 422, "grammar.value"),
    ],
)
@async_test
async def test_what_cannot_be_drafted_is_refused_by_name(fields: dict[str, Any], status: int, field: str) -> None:
    async with drafter() as worker:
        got, body = await worker.post("/v1/draft", request(**{"ids": REPEATING, "draft_tokens": 2, **fields}))
        assert (got, ErrorBody.model_validate(body).error.field) == (status, field)


@pytest.mark.parametrize(
    "fields",
    [
        {"lookahead_tokens": 1}, {"prepared_tokens": 1}, {"flight_seconds": 0.1}, {"assumed_tokens": 1},
        {"lookahead_seconds": 0.1},
    ],
)  # fmt: skip
@async_test
async def test_where_nothing_is_prepared_what_is_about_that_is_refused(fields: dict[str, Any]) -> None:
    """By lookup alone it would have no effect, and an older worker refuses it, too."""
    async with drafter() as worker:
        await worker.draft(ids=REPEATING, **fields)
    async with drafter(lookup=True) as worker:
        status, body = await worker.post("/v1/draft", request(REPEATING, draft_tokens=2, **fields))
        assert (status, body["error"]["code"], body["error"]["field"]) == (400, "unsupported", *fields)
        await worker.draft(ids=REPEATING, round=1, assumed_tokens=0, flight_seconds=0.0)


@async_test
async def test_a_batch_of_drafts() -> None:
    async with drafter() as worker:
        items = [request(REPEATING, draft_tokens=2, session_id=name) for name in "ab"]
        items.append(request([99], draft_tokens=2, session_id="c"))
        status, body = await worker.post("/v1/draft/batch", {"items": items})
        assert status == 200
        assert body["items"][0]["response"]["candidates"] == body["items"][1]["response"]["candidates"]
        assert body["items"][2]["error"]["field"] == "context.token_ids.0"


@async_test
async def test_the_items_of_a_batch_share_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_job(*args: Any) -> Job[Drafted]:
        time.sleep(0.01)  # in which a pass would begin with the items before
        return draft_job(*args)

    monkeypatch.setattr(torch_engine, "draft_job", slow_job)
    async with drafter() as worker:
        items = [request([place, 5], draft_tokens=2, session_id=f"s{place}") for place in range(4)]
        status, body = await worker.post("/v1/draft/batch", {"items": items})
        assert (status, [item["error"] for item in body["items"]]) == (200, [None] * 4)
        assert [len(rows) for rows in worker.runner.passes] == [4, 4]


@async_test
async def test_sessions_restart_and_mismatch_like_a_targets() -> None:
    async with drafter(lookup=True) as worker:
        status, body = await worker.post("/v1/draft", request(REPEATING, held=3, draft_tokens=2))
        assert (status, body["error"]["code"]) == (409, "context_mismatch")
        await worker.draft(ids=REPEATING, round=1)
        status, body = await worker.post("/v1/draft", request(REPEATING, draft_tokens=2))
        assert (status, body["error"]["code"]) == (409, "stale_round")
        assert (await worker.client.delete("/v1/sessions/s")).status_code == 204
        assert await worker.metric("tandem_draft_sessions") == 0
        assert await worker.metric("tandem_draft_spec_decode_num_draft_tokens_total") == 4
