"""The target's HTTP app: what it refuses and how, retries, evictions, restarts, batches, streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
import torch

from config.workers import TargetWorkerConfig
from protocol.errors import ErrorBody
from protocol.messages import VerifyResponse
from protocol.worker_info import ModelInfo, TokenizerInfo
from target_worker.app import create_app
from target_worker.runtime.engine import LoopTarget
from testing.fakes.runner import FakeRunner, hash_logits
from testing.patience import PATIENCE
from testing.wire import async_test, pause, request
from testing.worker_apps import Target, fake_engine, running, target

PROMPT = [3, 1, 4, 1, 5]


async def refused(worker: Target, status: int, code: str, field: str | None, **fields: Any) -> str:
    """The message of a refusal of the given kind."""
    got, body = await worker.post("/v1/verify", request(**{"ids": PROMPT, "candidates": [], **fields}))
    error = ErrorBody.model_validate(body).error
    assert (got, error.code, error.field) == (status, code, field), body
    return error.message


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"round": -1}, 422, "round"),
        ({"round": "1"}, 422, "round"),
        ({"unknown": 1}, 422, "unknown"),
        ({"protocol": 2}, 422, "protocol"),
        ({"session_id": "no spaces"}, 422, "session_id"),
        ({"max_tokens": 0}, 422, "max_tokens"),
        ({"num_prompt_tokens": 6}, 422, "num_prompt_tokens"),
        ({"ids": []}, 422, "context"),
        ({"context": {"start": 0, "token_ids": [1, -2], "prefix_hash": "0" * 16}}, 422, "context.token_ids.1"),
        ({"context": {"start": 0, "token_ids": [1, "a"], "prefix_hash": "0" * 16}}, 422, "context.token_ids.1"),
        ({"context": {"start": 0, "token_ids": [1], "prefix_hash": "0" * 16}}, 400, "context.prefix_hash"),
        ({"sampling": {"temperature": float("nan")}}, 422, "sampling.temperature"),
        ({"sampling": {"logit_bias": {"x": 1.0}}}, 422, "sampling"),
        ({"candidates": [{"token_ids": [1, 2], "logprobs": [-1.0]}]}, 422, "candidates.0.logprobs"),
        ({"candidates": [{"token_ids": list(range(33))}]}, 422, "candidates.0.token_ids"),
        ({"strategy": "hope"}, 422, "strategy"),
        ({"ids": [1, 32]}, 400, "context.token_ids.1"),
        ({"candidates": [{"token_ids": [1]}, {"token_ids": [3, 99]}]}, 400, "candidates.1.token_ids.1"),
        ({"sampling": {"logit_bias": {"32": 1.0}}}, 400, "sampling.logit_bias.32"),
        ({"sampling": {"stop_token_ids": [3, 40]}}, 400, "sampling.stop_token_ids.1"),
        ({"strategy": "probabilistic", "candidates": [{"token_ids": [1]}]}, 400, "candidates.0.q"),
    ],
)
@async_test
async def test_what_is_wrong_is_refused_by_name(fields: dict[str, Any], status: int, field: str) -> None:
    async with target() as worker:
        body = request(**{"ids": PROMPT, "candidates": [], **fields})
        response = await worker.client.post("/v1/verify", content=json.dumps(body))
        error = ErrorBody.model_validate(response.json()).error
        assert (response.status_code, error.field) == (status, field), error
        assert worker.runner.passes == []


@pytest.mark.parametrize("fields", [{"sampling": {"logit_bias": {"9" * 5000: 1.0}}}, {"x" * 5000: 1}])
@pytest.mark.parametrize("value", [1.0, "much"])
@async_test
async def test_a_name_of_any_length_is_not_repeated_whole(fields: dict[str, Any], value: Any) -> None:
    async with target() as worker:
        if "sampling" in fields:
            fields = {"sampling": {"logit_bias": dict.fromkeys(fields["sampling"]["logit_bias"], value)}}
        body = request(**{"ids": PROMPT, "candidates": [], **fields})
        response = await worker.client.post("/v1/verify", content=json.dumps(body))
        assert response.status_code == 422
        assert len(response.content) < 300
        assert ErrorBody.model_validate(response.json()).error.code == "invalid_request"


@async_test
async def test_what_this_target_cannot_honour_is_unsupported() -> None:
    async with target() as worker:
        grammar = {"type": "regex", "value": "a*", "start": 0}
        await refused(worker, 400, "unsupported", "grammar.type", grammar=grammar)
        two = [{"token_ids": [1], "q": [{"token_ids": [1], "logprobs": [0.0]}]}] * 2
        await refused(worker, 400, "unsupported", "candidates", strategy="probabilistic", candidates=two)
        status, body = await worker.post("/v1/generate", request(PROMPT, speculation={"enabled": True}))
        assert (status, body["error"]["field"]) == (400, "speculation.enabled")
        assert await worker.generate(ids=PROMPT, speculation={"enabled": False})


@async_test
async def test_a_context_without_room_is_refused() -> None:
    async with target(FakeRunner(1, slot_length=8)) as worker:
        await refused(worker, 400, "context_too_long", "context", ids=[1] * 8)
        assert (await worker.verify(ids=[1] * 7))["stop_reason"] == "length"


@async_test
async def test_bodies_that_are_not_messages_get_the_same_shape() -> None:
    async with target(body_limit_bytes=2048) as worker:
        cases = [
            (b"", 422, "invalid_request"),
            (b"{", 422, "invalid_request"),
            (b"\xff\xfe", 422, "invalid_request"),
            (b"[]", 422, "invalid_request"),
            (b"null", 422, "invalid_request"),
            (b"[" * 2000, 422, "invalid_request"),
            (b" " * 2049, 413, "body_too_large"),
        ]
        for path in ("/v1/verify", "/v1/verify/batch", "/v1/generate"):
            for body, status, code in cases:
                response = await worker.client.post(path, content=body)
                assert response.status_code == status, (path, body[:10])
                assert ErrorBody.model_validate(response.json()).error.code == code

        async def chunks() -> Any:
            for _ in range(3):
                yield b" " * 1000

        assert (await worker.client.post("/v1/verify", content=chunks())).status_code == 413


@async_test
async def test_paths_methods_and_tokens_get_the_same_shape() -> None:
    async with target(worker_token="secret") as worker:
        open_paths = [await worker.client.get(path) for path in ("/health", "/ready", "/metrics")]
        assert [response.status_code for response in open_paths] == [200] * 3
        for wrong in (None, "Bearer wrong", "secret", "Basic secret", "Bearer"):
            headers = {} if wrong is None else {"Authorization": wrong}
            response = await worker.client.get("/v1/model", headers=headers)
            assert response.status_code == 401
            assert ErrorBody.model_validate(response.json()).error.code == "unauthorized"
        for scheme in ("bearer", "Bearer"):  # its case means nothing (RFC 9110)
            worker.client.headers["Authorization"] = f"{scheme} secret"
            assert (await worker.client.get("/v1/model")).status_code == 200
        for method, path, status in [
            ("GET", "/nowhere", 404),
            ("GET", "/v1/verify", 405),
            ("POST", "/v1/verify/", 404),
        ]:
            response = await worker.client.request(method, path)
            assert response.status_code == status
            ErrorBody.model_validate(response.json())
        assert (await worker.client.get("/v1/verify")).headers["allow"] == "POST"


@async_test
async def test_the_model_and_its_tokenizer_are_described() -> None:
    async with target() as worker:
        info = ModelInfo.model_validate_json((await worker.client.get("/v1/model")).content)
        assert info.role == "target"
        assert "deterministic" in info.capabilities.strategies
        TokenizerInfo.model_validate_json((await worker.client.get("/v1/tokenizer")).content)
        schema = (await worker.client.get("/openapi.json")).json()
        body = schema["paths"]["/v1/verify"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": "#/components/schemas/VerifyRequest"}
        assert "VerifyRequest" in schema["components"]["schemas"]
        assert "Context" in schema["components"]["schemas"]


@async_test
async def test_a_retry_gets_the_same_answer_and_an_older_round_none() -> None:
    async with target() as worker:
        fields: dict[str, Any] = {"ids": PROMPT, "candidates": [{"token_ids": [1, 2]}], "round": 2}
        first = await worker.verify(**fields)
        again = await worker.verify(**fields, held=len(PROMPT))
        assert first["token_ids"] == again["token_ids"]
        await refused(worker, 409, "stale_round", "round", round=1)
        both = await asyncio.gather(*(worker.verify(**{**fields, "round": 3}) for _ in range(2)))
        assert both[0] == both[1]
        assert both[0]["token_ids"] == first["token_ids"]


@async_test
async def test_an_evicted_session_is_resent_and_goes_on_as_if_nothing_had_happened() -> None:
    async with target(max_sessions=1) as worker:
        first = (await worker.verify(ids=PROMPT, session_id="a"))["token_ids"]
        await worker.verify(ids=[9, 9], session_id="b")
        ids = [*PROMPT, *first]
        await refused(
            worker, 409, "context_mismatch", "context.start", ids=ids, held=len(PROMPT), session_id="a", round=1
        )
        resumed = await worker.verify(ids=ids, session_id="a", round=1)
        assert resumed["cached_tokens"] == len(PROMPT), "its keys and values were still there"
    async with target() as fresh:
        assert (await fresh.verify(ids=ids))["token_ids"] == resumed["token_ids"]


@async_test
async def test_a_slot_lost_to_another_session_is_filled_again_unasked() -> None:
    async with target(slots=1) as worker:
        first = (await worker.verify(ids=PROMPT, session_id="a"))["token_ids"]
        await worker.verify(ids=[9, 9], session_id="b")
        ids = [*PROMPT, *first]
        answer = await worker.verify(ids=ids, held=len(PROMPT), session_id="a", round=1)
        assert answer["cached_tokens"] == 0
    async with target() as fresh:
        assert (await fresh.verify(ids=ids))["token_ids"] == answer["token_ids"]


@async_test
async def test_a_restarted_worker_asks_for_the_context_again() -> None:
    async with target() as worker:
        ids = [*PROMPT, *(await worker.verify(ids=PROMPT))["token_ids"]]
        expected = (await worker.verify(ids=ids, held=len(PROMPT), round=1))["token_ids"]
    async with target() as restarted:
        await refused(restarted, 409, "context_mismatch", "context.start", ids=ids, held=len(PROMPT), round=1)
        assert (await restarted.verify(ids=ids, round=1))["token_ids"] == expected


@async_test
async def test_deleting_forgets_the_session_but_not_what_it_read() -> None:
    async with target() as worker:
        await worker.verify(ids=PROMPT * 4)
        for _ in range(2):
            assert (await worker.client.delete("/v1/sessions/s")).status_code == 204
        await refused(worker, 409, "context_mismatch", "context.start", ids=PROMPT * 4, held=4)
        answer = await worker.verify(ids=[*PROMPT * 4, 7], session_id="other")
        assert answer["cached_tokens"] == len(PROMPT) * 4
        salted = await worker.verify(ids=[*PROMPT * 4, 7], session_id="salted", salt="x")
        assert salted["cached_tokens"] == 0


@async_test
async def test_without_a_session_content_is_matched() -> None:
    async with target() as worker:
        await worker.verify(ids=PROMPT * 4, session_id=None)
        answer = await worker.verify(ids=[*PROMPT * 4, 1], session_id=None)
        assert answer["cached_tokens"] == len(PROMPT) * 4
        assert answer["session_id"] is None


@async_test
async def test_a_full_queue_answers_429_with_a_time_to_come_back() -> None:
    async with target(slots=1, slot_hold_ms=60_000, max_queue=1) as worker:
        await worker.verify(ids=PROMPT, session_id="holds")
        waits = asyncio.create_task(worker.post("/v1/verify", request([1], session_id="waits", candidates=[])))
        while not await worker.metric("tandem_target_num_requests_waiting"):
            await pause()
        response = await worker.client.post("/v1/verify", json=request([2], session_id="full", candidates=[]))
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "queue_full"
        assert int(response.headers["retry-after"]) >= 1
        await worker.client.delete("/v1/sessions/holds")
        assert (await waits)[0] == 200


@async_test
async def test_a_deadline_that_passes_is_a_408() -> None:
    async with target(slots=1, slot_hold_ms=60_000) as worker:
        await worker.verify(ids=PROMPT, session_id="holds")
        await refused(worker, 408, "deadline_exceeded", "deadline_ms", session_id="late", deadline_ms=20)


@async_test
async def test_unusable_logits_are_a_503_for_that_call_alone() -> None:
    runner = FakeRunner(logits=lambda ids: hash_logits(ids) * (float("nan") if ids[0] == 13 else 1.0))
    async with target(runner) as worker:
        await refused(worker, 503, "engine_failure", None, ids=[13, 1], session_id="bad")
        assert (await worker.verify(ids=PROMPT))["token_ids"]


@async_test
async def test_until_its_model_is_loaded_a_worker_is_alive_but_not_ready() -> None:
    reasons: list[str] = []

    def fail(progress: Any) -> Any:
        raise ValueError("no such model: nowhere")

    app = create_app(TargetWorkerConfig(), fail, reasons.append)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://worker", timeout=PATIENCE) as client:
            while not reasons:
                await pause()
            assert (await client.get("/health")).status_code == 200
            ready = await client.get("/ready")
            assert (ready.status_code, ready.json()["ready"]) == (503, False)
            assert "no such model" in ready.json()["detail"]
            response = await client.post("/v1/verify", json=request(PROMPT, candidates=[]))
            assert (response.status_code, response.json()["error"]["code"]) == (503, "not_ready")
    assert reasons == ["no such model: nowhere"]


@async_test
async def test_a_stream_leaves_its_session_ready_for_rounds() -> None:
    async with target() as worker:
        lines = await worker.generate(ids=PROMPT, max_tokens=4, sampling={"ignore_eos": True})
        emitted = [token_id for line in lines for token_id in line["token_ids"]]
        assert len(emitted) == 4
        assert [line["stop_reason"] for line in lines] == [None, None, None, "length"]
        ids = [*PROMPT, *emitted]
        worker.runner.passes.clear()
        answer = await worker.verify(ids=ids, held=len(ids), round=1)
        assert answer["cached_tokens"] == len(ids) - 1
        assert [len(row.token_ids) for rows in worker.runner.passes for row in rows] == [1]


@async_test
async def test_what_goes_wrong_in_mid_stream_is_the_last_line() -> None:
    def logits(ids: Any) -> torch.Tensor:
        return hash_logits(ids) * (float("nan") if len(ids) == 8 else 1.0)

    async with target(FakeRunner(logits=logits)) as worker:
        lines = await worker.generate(ids=PROMPT, max_tokens=9, sampling={"ignore_eos": True})
        assert len(lines) == 4
        assert ErrorBody.model_validate(lines[-1]).error.code == "engine_failure"
        status, body = await worker.post("/v1/generate", request([1] * 8, session_id="t"))
        assert (status, body["error"]["code"]) == (503, "engine_failure"), (
            "before the first token it has its own status"
        )


@async_test
async def test_metrics_count_drafts_and_what_became_of_them() -> None:
    async with target() as worker:
        sampling = {"temperature": 0.0}
        truth = (await worker.verify(ids=PROMPT, sampling=sampling, session_id="t"))["token_ids"]
        wrong = (truth[0] + 1) % 32
        await worker.verify(ids=PROMPT, sampling=sampling, candidates=[{"token_ids": [*truth, wrong]}])
        await worker.verify(ids=PROMPT, sampling=sampling, candidates=[{"token_ids": [wrong]}], round=1)
        await worker.post("/v1/verify", request([99], candidates=[]))
        assert await worker.metric("tandem_target_spec_decode_num_drafts_total") == 2
        assert await worker.metric("tandem_target_spec_decode_num_draft_tokens_total") == 3
        assert await worker.metric("tandem_target_spec_decode_num_accepted_tokens_total") == 1
        assert await worker.metric("tandem_target_prefix_cache_queries_total") == 15
        assert await worker.metric("tandem_target_errors_total") == 1
        assert await worker.metric("tandem_target_sessions") == 2
        page = (await worker.client.get("/metrics")).text
        assert 'tandem_target_http_requests_total{endpoint="/v1/verify",status="400"} 1.0' in page
        assert 'tandem_target_call_seconds_count{phase="forward"} 3.0' in page
        assert 'tandem_target_spec_decode_num_accepted_tokens_per_pos_total{position="0"} 1.0' in page


@async_test
async def test_an_unexpected_error_is_a_503_and_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    config = TargetWorkerConfig()

    class Broken(LoopTarget):
        async def verify(self, *arguments: object) -> VerifyResponse:
            raise RuntimeError("surprise")

    def load(progress: object) -> LoopTarget:
        return Broken(fake_engine(FakeRunner(config.slots), "target", config), 1.0, False)

    app = create_app(config, load)
    async with running(app) as client:
        response = await client.post("/v1/verify", json=request(PROMPT, candidates=[]))
        assert response.status_code == 503
        assert ErrorBody.model_validate(response.json()).error.code == "engine_failure"
        assert "surprise" not in response.text
        assert "surprise" in caplog.text


@async_test
async def test_no_token_of_a_request_is_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with target() as worker:
        caplog.clear()
        await worker.verify(ids=[27, 28, 29, 27, 28], candidates=[{"token_ids": [26, 25]}])
        await worker.post("/v1/verify", request([27, 28, 29, 999], candidates=[]))
        ours = [r.getMessage() for r in caplog.records if r.name.startswith(("worker", "target_worker", "engines"))]
        assert not any(number in message for message in ours for number in ("26", "27", "28", "999"))


@async_test
async def test_a_target_without_grammars_says_so() -> None:
    async with target() as worker:
        grammar = {"type": "regex", "value": "a", "start": 0}
        status, body = await worker.post("/v1/grammar/check", {"grammar": grammar})
        assert (status, body["error"]["code"], body["error"]["field"]) == (400, "unsupported", "grammar.type")
        await refused(worker, 400, "unsupported", "grammar.type", grammar=grammar)
        status, body = await worker.post("/v1/grammar/check", {"grammar": {**grammar, "type": "prolog"}})
        assert (status, body["error"]["field"]) == (422, "grammar.type")
