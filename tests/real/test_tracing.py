"""Traces of real processes, as a collector that speaks OTLP receives them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.patience import PATIENCE, eventually
from testing.processes import Process, Stack, free_port
from testing.tiny_models import make_tiny_model

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

# Four processes and the SDK: a minute on two busy cores.
pytestmark = pytest.mark.slow

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@dataclass
class Span:
    service: str
    name: str
    trace: str
    id: str
    parent: str
    failed: bool
    attributes: dict[str, Any]


@dataclass
class Collector:
    """A server for POST /v1/traces."""

    url: str
    spans: list[Span] = field(default_factory=list)

    def of(self, trace: str) -> list[Span]:
        return [span for span in self.spans if span.trace == trace]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    received = Collector("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            request = trace_service.ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                named = {one.key: one.value.string_value for one in resource.resource.attributes}
                for scope in resource.scope_spans:
                    received.spans += [_span(named["service.name"], span) for span in scope.spans]
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    received.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield received
    server.shutdown()
    server.server_close()


def _span(service: str, span: Any) -> Span:
    attributes = {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    return Span(service, span.name, *ids, span.status.code == 2, attributes)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tracing") / "tiny", layers=1)


@pytest.fixture(scope="module")
def gateway(collector: Collector, model: Path) -> Iterator[Process]:
    with pytest.MonkeyPatch.context() as patch, Stack(model.parent / "logs") as stack:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        settings = {"slots": 2, "threads": 1}
        target, draft = stack.target(model, **settings), stack.draft(model, **settings)
        running = stack.gateway([target.url], [draft.url])
        # A gateway whose collector nobody is.
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
        stack.gateway([target.url], [draft.url], name="alone")
        stack.wait_ready()
        running.alone = stack.processes[-1]  # type: ignore[attr-defined]
        yield running


def ask(process: Process, **more: Any) -> httpx.Response:
    headers = more.pop("headers", {})
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16, **more}
    url = f"{process.url}/v1/chat/completions"
    return httpx.post(url, json=body, headers=headers, timeout=PATIENCE, trust_env=False)


def test_a_request_is_one_trace_through_all_three(gateway: Process, collector: Collector) -> None:
    speculative = {"draft_tokens": 3, "adaptive_speculation": False}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "traced-1"}
    answer = ask(gateway, headers=headers, speculative=speculative, ignore_eos=True).json()
    services = {"tandem-gateway", "tandem-target", "tandem-draft"}
    eventually(lambda: {span.service for span in collector.of(TRACE)} == services, "all three told")
    eventually(lambda: any(span.name == "request" for span in collector.of(TRACE)), "the request has ended")
    spans = collector.of(TRACE)
    [request] = [span for span in spans if span.name == "request"]
    assert (request.service, request.parent, request.failed) == ("tandem-gateway", PARENT, False)
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["tandem.request_id"] == "traced-1"
    assert request.attributes["tandem.answer_id"] == answer["id"]
    assert {span.parent for span in spans if span is not request} == {request.id}
    rounds = [span.attributes for span in spans if span.name == "round"]
    told = answer["metrics"]["speculative_decoding"]
    assert [one["tandem.round"] for one in rounds] == list(range(len(rounds)))
    assert sum(one["tandem.tokens"] for one in rounds) == answer["usage"]["completion_tokens"]
    assert sum(one["tandem.drafted"] for one in rounds) == told["num_draft_tokens"]
    assert sum(one["tandem.accepted"] for one in rounds) == told["num_accepted_draft_tokens"]
    assert all(one["tandem.verify_forward_ms"] > 0 for one in rounds)
    by_target = [span.attributes for span in spans if span.service == "tandem-target"]
    assert sum(one["tandem.tokens"] for one in by_target) == answer["usage"]["completion_tokens"]
    assert {span.name for span in spans if span.service == "tandem-draft"} == {"draft"}


def test_one_without_a_parent_begins_a_trace_and_a_refusal_is_in_it(gateway: Process, collector: Collector) -> None:
    assert ask(gateway, headers={"x-request-id": "own-1"}).status_code == 200
    assert ask(gateway, headers={"x-request-id": "own-2", "traceparent": "x" * 300}, temperature=9).status_code == 400
    assert ask(gateway, headers={"x-request-id": "own-3", "traceparent": "x" * 300}).status_code == 200

    def told(name: str) -> list[Span]:
        return [span for span in collector.spans if span.attributes.get("tandem.request_id") == name]

    eventually(lambda: bool(told("own-1") and told("own-2") and told("own-3")), "all told")
    [first], [refused], [third] = told("own-1"), told("own-2"), told("own-3")
    assert first.parent == refused.parent == third.parent == ""
    assert len({TRACE, first.trace, refused.trace, third.trace}) == 4
    assert refused.attributes["http.response.status_code"] == 400
    assert refused.attributes["tandem.code"] == "invalid_value"
    assert not refused.failed  # the client's fault, not the server's


def test_who_is_not_to_be_sampled_is_not(gateway: Process, collector: Collector) -> None:
    trace = "1" * 32
    assert ask(gateway, headers={"traceparent": f"00-{trace}-{PARENT}-00"}).status_code == 200
    assert ask(gateway, headers={"traceparent": f"00-{'2' * 32}-{PARENT}-01"}).status_code == 200
    eventually(lambda: any(span.name == "request" for span in collector.of("2" * 32)), "the later one")
    assert collector.of(trace) == []


def test_a_collector_that_is_gone_costs_no_request_and_no_end(gateway: Process) -> None:
    alone: Process = gateway.alone  # type: ignore[attr-defined]
    for _ in range(3):
        assert ask(alone).status_code == 200
    alone.terminate()
    assert alone.wait(PATIENCE) == 0
