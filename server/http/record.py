"""What is noted of one HTTP request on its way, for its line in the log and its place in the metrics."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

from server.errors import ApiError
from server.metrics import GatewayMetrics

_KEY = "tandem.record"


@dataclass(slots=True)
class RequestRecord:
    """`id` is its x-request-id, `arrived` time.monotonic(); `failure` the error told to the client, in a stream too."""

    id: str
    arrived: float
    failure: ApiError | None = None


def begin_record(scope: Scope, record: RequestRecord) -> None:
    scope[_KEY] = record


def record_of(scope: Scope) -> RequestRecord | None:
    """None where the app runs without its outermost middleware, as in some tests."""
    record: RequestRecord | None = scope.get(_KEY)
    return record


def note_error(scope: Scope, metrics: GatewayMetrics, error: ApiError) -> None:
    """Counts an error that the client is told."""
    metrics.errors.labels(error.status, error.code or "").inc()
    record = record_of(scope)
    if record is not None:
        record.failure = error
