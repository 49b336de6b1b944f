"""Traces over OTLP, off unless the environment says where they go; the extra `otel` has what that needs.

The variables are OpenTelemetry's own (OTEL_EXPORTER_OTLP_ENDPOINT and the like, docs/operations.md). Spans go to
a thread with a bounded queue: a collector that is slow or gone costs spans, never a request.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

from basics.metrics import tandem_version

logger = logging.getLogger(__name__)

TURNED_ON_BY = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_EXPORT_SECONDS = 5
_FAREWELL_SECONDS = 3.0

Attributes = Mapping[str, str | int | float | bool]

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

_tracing: Tracing | None = None


def valid_traceparent(given: str | None) -> str | None:
    """`given`, if it is a valid W3C traceparent; with anything else the request belongs to no trace."""
    return given if given is not None and _TRACEPARENT.fullmatch(given) else None


def begin(name: str, traceparent: str | None) -> Span | None:
    """A server's span, a child of the caller's if the request names one. None while tracing is off."""
    return None if _tracing is None else Span(_tracing, name, traceparent)


def record(name: str, traceparent: str | None, seconds: float, attributes: Attributes) -> None:
    """A span that ends now and took this long; none while tracing is off or without a trace to belong to."""
    if _tracing is not None and traceparent is not None:
        _tracing.record(name, traceparent, seconds, attributes)


def set_up_tracing(service: str) -> None:
    """Turn it on for this process, if the environment names an endpoint. `service`: gateway, target or draft."""
    global _tracing
    if not any(os.environ.get(name) for name in TURNED_ON_BY) or os.environ.get("OTEL_SDK_DISABLED") == "true":
        return
    try:
        _tracing = Tracing(service)
    except ImportError as error:
        logger.warning("no traces, though %s is set: %s; install the extra `otel`", " or ".join(TURNED_ON_BY), error)


def stop_tracing() -> None:
    """Send what is left, but wait for a collector no longer than a few seconds."""
    global _tracing
    stopping, _tracing = _tracing, None
    if stopping is not None:
        thread = threading.Thread(target=stopping.close, daemon=True)
        thread.start()
        thread.join(_FAREWELL_SECONDS)


class Tracing:
    """OpenTelemetry's SDK. Raises ImportError if it is not installed."""

    def __init__(self, service: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        resource = Resource.create({"service.version": tandem_version()})
        if not named:
            resource = resource.merge(Resource({"service.name": f"tandem-{service}"}))
        timeout = None if "OTEL_EXPORTER_OTLP_TIMEOUT" in os.environ else _EXPORT_SECONDS
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=timeout)))
        self._tracer = self._provider.get_tracer("tandem", tandem_version())
        self._propagator = TraceContextTextMapPropagator()
        self._in_context = set_span_in_context
        self._kind = SpanKind
        self._failed = Status(StatusCode.ERROR)

    def start(self, name: str, traceparent: str | None) -> Any:
        """An SDK's span of a server."""
        return self._tracer.start_span(name, context=self._context(traceparent), kind=self._kind.SERVER)

    def record(self, name: str, traceparent: str, seconds: float, attributes: Attributes) -> None:
        end = time.time_ns()
        began = end - int(seconds * 1e9)
        span = self._tracer.start_span(
            name, context=self._context(traceparent), attributes=dict(attributes), start_time=began
        )
        span.end(end)

    def traceparent(self, span: Any) -> str:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=self._in_context(span))
        return carrier["traceparent"]

    def fail(self, span: Any) -> None:
        span.set_status(self._failed)

    def close(self) -> None:
        self._provider.shutdown()

    def _context(self, traceparent: str | None) -> Any:
        return self._propagator.extract({"traceparent": traceparent} if traceparent is not None else {})


class Span:
    """An open span. `traceparent` is what the next service continues the trace with."""

    def __init__(self, tracing: Tracing, name: str, traceparent: str | None) -> None:
        self._tracing = tracing
        self._span = tracing.start(name, traceparent)
        self.traceparent = tracing.traceparent(self._span)

    def end(self, attributes: Attributes, failed: bool = False) -> None:
        self._span.set_attributes(dict(attributes))
        if failed:
            self._tracing.fail(self._span)
        self._span.end()
