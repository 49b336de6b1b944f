"""The gateway's part of a trace, as a collector that speaks OTLP receives it (tests/real has all three processes)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from api_doubles import ScriptedBackend, Start

from serving import tracing

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What the collector has received; complete once tracing is stopped."""
    received: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            request = trace_service.ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    received.extend(scope.spans)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    tracing.set_up_tracing("gateway")
    yield received
    tracing.stop_tracing()
    server.shutdown()
    server.server_close()


def values(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def test_a_request_and_its_rounds_go_on_with_the_clients_trace(start: Start, spans: list[Any]) -> None:
    running = start(ScriptedBackend())
    body = {"model": "tiny/model", "messages": [{"role": "user", "content": "Hi"}]}
    url = f"{running.url}/v1/chat/completions"
    answer = running.http.post(url, json=body, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}).json()
    assert (
        running.http.post(url, json={**body, "temperature": 9}, headers={"traceparent": "x" * 300}).status_code == 400
    )
    assert running.get("/v1/models").status_code == 200
    [asked] = running.backend.requests
    tracing.stop_tracing()
    [request] = [span for span in spans if span.trace_id.hex() == TRACE and span.name == "request"]
    assert request.parent_span_id.hex() == PARENT
    assert asked.traceparent == f"00-{TRACE}-{request.span_id.hex()}-01"  # what the workers go on with
    assert values(request)["http.response.status_code"] == 200
    assert values(request)["tandem.answer_id"] == answer["id"]
    rounds = [span for span in spans if span.name == "round"]
    assert {span.parent_span_id for span in rounds} == {request.span_id}
    assert sum(values(span)["tandem.tokens"] for span in rounds) == answer["usage"]["completion_tokens"]
    told = answer["metrics"]["speculative_decoding"]
    assert sum(values(span)["tandem.accepted"] for span in rounds) == told["num_accepted_draft_tokens"]
    assert all(values(span)["tandem.verify_forward_ms"] == 2.0 for span in rounds)
    [refused] = [span for span in spans if span.name == "request" and span is not request]
    assert (refused.parent_span_id, values(refused)["tandem.code"]) == (b"", "invalid_value")


def test_a_collector_that_is_gone_costs_no_request(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    tracing.set_up_tracing("gateway")
    running = start(ScriptedBackend())
    assert [running.chat().status_code for _ in range(3)] == [200] * 3
    tracing.stop_tracing()


def test_it_is_off_without_the_variable(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tracing.TURNED_ON_BY:
        monkeypatch.delenv(name, raising=False)
    tracing.set_up_tracing("gateway")
    running = start(ScriptedBackend())
    header = f"00-{TRACE}-{PARENT}-01"
    body = {"model": "tiny/model", "messages": [{"role": "user", "content": "Hi"}]}
    running.http.post(f"{running.url}/v1/chat/completions", json=body, headers={"traceparent": header})
    assert running.backend.requests[-1].traceparent == header  # passed on all the same
    assert tracing.begin("request", header) is None
