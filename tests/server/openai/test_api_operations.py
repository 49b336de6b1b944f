"""Keys, headers, health, metrics, CORS and the OpenAPI document."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import httpx
import openai
import pytest
from api_doubles import END, MODEL, Running, ScriptedBackend, Start, make_round, served_model
from prometheus_client.parser import text_string_to_metric_families

from config.gateway import GatewayConfig
from server.app import create_app
from server.backend import GenerationRequest, Round
from server.errors import NoTarget
from server.http import auth
from testing.patience import PATIENCE, eventually


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_keys_are_asked_for(start: Start) -> None:
    running = start(api_keys=["one", "two"])
    for headers in ({}, bearer("three"), bearer("on"), {"authorization": "Basic one"}, bearer("é")):
        response = running.get("/v1/models", headers={name: value.encode() for name, value in headers.items()})
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    for key in ("one", "two"):
        assert running.get("/v1/models", headers=bearer(key)).status_code == 200
    for path in ("/health", "/ready", "/metrics"):
        assert running.get(path).status_code == 200
    with pytest.raises(openai.AuthenticationError):
        running.sdk.models.list()


def test_a_key_file_is_read_again(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "_LOOK_SECONDS", 0.0)
    path = tmp_path / "keys"
    path.write_text("# ours\n\nfirst\n")
    running = start(api_key_file=path)
    assert running.get("/v1/models", headers=bearer("first")).status_code == 200
    assert running.get("/v1/models", headers=bearer("# ours")).status_code == 401
    path.write_text("second\n")
    os.utime(path, (time.time() + 5, time.time() + 5))
    assert running.get("/v1/models", headers=bearer("first")).status_code == 401
    assert running.get("/v1/models", headers=bearer("second")).status_code == 200
    path.unlink()
    assert running.get("/v1/models", headers=bearer("second")).status_code == 200


def test_an_empty_key_file_lets_nobody_in(start: Start, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("")
    running = start(api_key_file=tmp_path / "keys")
    assert running.get("/v1/models").status_code == 401
    assert running.get("/v1/models", headers={"authorization": "Bearer"}).status_code == 401


def test_a_missing_key_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="keys"):
        create_app(GatewayConfig(api_key_file=tmp_path / "keys"), ScriptedBackend())


def test_headers(gateway: Running) -> None:
    answer = gateway.get("/v1/models", headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert int(answer.headers["openai-processing-ms"]) >= 0
    drawn = gateway.get("/v1/nope", headers={"x-request-id": "not valid {}"}).headers["x-request-id"]
    assert drawn
    assert drawn != "not valid {}"
    assert gateway.sdk.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])._request_id


def test_cors_is_off_by_default(start: Start, gateway: Running) -> None:
    origin = {"origin": "https://a.example"}
    assert "access-control-allow-origin" not in gateway.get("/v1/models", headers=origin).headers
    running = start(cors_origins=["https://a.example"], api_keys=["k"])
    allowed = running.get("/v1/models", headers={**origin, **bearer("k")})
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    preflight = {**origin, "access-control-request-method": "POST"}
    assert running.http.options(running.url + "/v1/chat/completions", headers=preflight).status_code == 200


def test_health_and_readiness(gateway: Running) -> None:
    assert gateway.get("/health").json() == {"status": "ok"}
    assert gateway.get("/ready").json() == {"ready": True, "detail": "as scripted"}


def samples(running: Running) -> dict[str, float]:
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(running.get("/metrics").text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            values[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return values


def test_metrics_count_what_happened(start: Start) -> None:
    running = start(ScriptedBackend(tokens_a_round=3))
    answer = running.chat(n=2).json()
    running.chat(temperature=9)
    running.get("/whatever")
    usage = answer["usage"]
    details = usage["completion_tokens_details"]
    found = samples(running)
    lookup = f"pair={MODEL}+lookup,source=lookup"
    assert found["tandem_generation_tokens_total"] == usage["completion_tokens"]
    assert found["tandem_prompt_tokens_total"] == 2 * usage["prompt_tokens"]
    assert found["tandem_request_success_total{finished_reason=stop}"] == 2
    accepted = found[f"tandem_spec_decode_num_accepted_tokens_total{{{lookup}}}"]
    drafted = found[f"tandem_spec_decode_num_draft_tokens_total{{{lookup}}}"]
    assert accepted == details["accepted_prediction_tokens"]
    assert drafted - accepted == details["rejected_prediction_tokens"]
    positions = [
        value for name, value in found.items() if "tandem_spec_decode_num_accepted_tokens_per_pos_total" in name
    ]
    assert sum(positions) == accepted
    rounds = answer["metrics"]["speculative_decoding"]["num_spec_steps"]
    assert found[f"tandem_spec_decode_num_drafts_total{{{lookup}}}"] == rounds
    assert found["tandem_spec_decode_draft_length_sum"] == drafted
    assert found["tandem_round_seconds_count{phase=draft}"] == rounds
    assert found["tandem_round_seconds_sum{phase=verify_forward}"] == pytest.approx(0.002 * rounds)
    assert found["tandem_time_to_first_token_seconds_count"] == 2
    assert found["tandem_inter_token_latency_seconds_count"] == rounds - 2
    assert found["tandem_e2e_request_latency_seconds_count"] == 2
    assert found["tandem_request_time_per_output_token_seconds_count"] == 2
    assert found["tandem_num_requests_running"] == found["tandem_num_requests_waiting"] == 0
    assert found["tandem_request_errors_total{code=invalid_value,status=400}"] == 1
    assert found["tandem_http_requests_total{method=GET,path=unknown,status=404}"] == 1
    assert found["tandem_http_requests_total{method=POST,path=/v1/chat/completions,status=200}"] == 1


def test_every_metric_is_documented(gateway: Running) -> None:
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    names = {
        family.name
        for family in text_string_to_metric_families(gateway.get("/metrics").text)
        if family.name.startswith("tandem_") and not family.name.endswith("_created")
    }
    assert len(names) > 15
    assert [name for name in sorted(names) if f"`{name}" not in page] == []


def test_the_openapi_document_is_whole(gateway: Running) -> None:
    document = gateway.get("/openapi.json").json()
    assert set(document["paths"]) >= {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/ready"}
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ChatCompletionRequest"}
    schemas = document["components"]["schemas"]
    assert {"draft_tokens", "strategy", "num_candidates"} <= set(schemas["SpeculativeOptions"]["properties"])

    def references(node: object) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [found for value in node.values() for found in references(value)]
        return [found for value in node for found in references(value)] if isinstance(node, list) else []

    missing = {found for found in references(document) if found.rpartition("/")[2] not in schemas}
    assert missing == set()


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_no_page_that_loads_scripts_from_elsewhere(gateway: Running, path: str) -> None:
    assert gateway.get(path).status_code == 404


def test_refusals_are_counted_under_their_path(start: Start) -> None:
    running = start(api_keys=["one"])
    assert running.post("/v1/chat/completions", {}).status_code == 401
    assert running.get("/v1/models/some/model").status_code == 401
    assert running.get("/nothing/here").status_code == 401
    found = samples(running)
    for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models/{model_id:path}"), ("GET", "unknown")):
        assert found[f"tandem_http_requests_total{{method={method},path={path},status=401}}"] == 1


def test_failures_are_there_before_the_first(start: Start) -> None:
    found = samples(start())
    for reason in ("stop", "length", "abort", "error"):
        assert found[f"tandem_request_success_total{{finished_reason={reason}}}"] == 0
    for code, status in (("no_target", 503), ("overloaded", 429), ("internal_error", 500), ("invalid_api_key", 401)):
        assert found[f"tandem_request_errors_total{{code={code},status={status}}}"] == 0
    for source in ("model", "lookup"):
        labels = f"pair={MODEL}+lookup,source={source}"
        assert found[f"tandem_spec_decode_num_drafts_total{{{labels}}}"] == 0


def test_an_error_inside_a_stream_is_no_success(start: Start) -> None:
    async def breaks(request: GenerationRequest) -> AsyncGenerator[Round, None]:
        yield make_round([40, 41])
        raise NoTarget("the last one is gone")

    running = start(ScriptedBackend(script=breaks))
    answer = running.chat(stream=True)
    assert answer.status_code == 200
    assert "no_target" in answer.text
    found = samples(running)
    assert found["tandem_request_success_total{finished_reason=error}"] == 1
    assert found["tandem_http_requests_total{method=POST,path=/v1/chat/completions,status=503}"] == 1
    assert "tandem_http_requests_total{method=POST,path=/v1/chat/completions,status=200}" not in found
    assert found["tandem_request_errors_total{code=no_target,status=503}"] == 1


def test_a_client_that_leaves_in_mid_stream_is_no_success(start: Start) -> None:
    async def goes_on(request: GenerationRequest) -> AsyncGenerator[Round, None]:
        while True:
            yield make_round([40, 41])
            await asyncio.sleep(0.01)

    running = start(ScriptedBackend(script=goes_on))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with httpx.stream(
        "POST", f"{running.url}/v1/chat/completions", json=body, trust_env=False, timeout=PATIENCE
    ) as stream:
        next(stream.iter_lines())
    assert running.backend.gone.wait(PATIENCE)
    left = "tandem_http_requests_total{method=POST,path=/v1/chat/completions,status=499}"
    eventually(lambda: left in samples(running), "the request is counted as left")
    found = samples(running)
    assert found[left] == 1
    assert found["tandem_request_success_total{finished_reason=abort}"] == 1


def test_vllms_names_hold_the_same_and_can_be_turned_off(start: Start) -> None:
    running = start(ScriptedBackend(tokens_a_round=3))
    told = running.chat().json()["metrics"]["speculative_decoding"]
    found = samples(running)
    labels = f"engine=0,model_name={MODEL}"
    assert found[f"vllm:spec_decode_num_drafts_total{{{labels}}}"] == told["num_spec_steps"]
    assert found[f"vllm:spec_decode_num_draft_tokens_total{{{labels}}}"] == told["num_draft_tokens"]
    assert found[f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}}"] == told["num_accepted_draft_tokens"]
    positions = [value for name, value in found.items() if name.startswith("vllm:") and "position=" in name]
    assert sum(positions) == told["num_accepted_draft_tokens"]
    off = start(vllm_metric_names=False)
    assert not [name for name in samples(off) if name.startswith("vllm:")]


def test_plain_answers_have_no_acceptance(start: Start) -> None:
    async def plainly(request: GenerationRequest) -> AsyncGenerator[Round, None]:
        yield make_round([40, END], num_drafted=0, num_accepted=0, stop_reason="stop_token", stop_token_id=END)

    running = start(ScriptedBackend(script=plainly))
    assert "metrics" not in running.chat(speculative={"enabled": False}).json()
    assert running.chat().json()["metrics"]["speculative_decoding"]["mean_acceptance_length"] == 1.0


def test_a_model_names_its_drafters_that_can_be_reached(start: Start) -> None:
    served = served_model()
    running = start(ScriptedBackend(served=served))
    assert running.get("/v1/models").json()["data"][0]["drafters"] == ["lookup", "small"]
    reached = {name: able for name, able in served.drafter.capabilities.items() if name != "small"}
    running.backend.served = replace(served, drafter=replace(served.drafter, capabilities=reached))
    assert running.get(f"/v1/models/{MODEL}").json()["drafters"] == ["lookup"]
