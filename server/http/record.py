"""What is noted of one HTTP request on its way, for its line in the log and its place in the metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from starlette.types import Scope

from server.backend import Round
from server.errors import ApiError
from server.metrics import GatewayMetrics

_PHASES = ("draft", "verify_forward", "sample", "queue", "network")

_KEY = "tandem.record"


@dataclass(slots=True)
class RequestRecord:
    """`id` is its x-request-id, `arrived` time.monotonic(); `failure` the error sent to the client, in a stream too."""

    id: str
    arrived: float
    failure: ApiError | None = None
    answer_id: str = ""
    pair: str = ""
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    first: float | None = None
    phases: dict[str, float] = field(default_factory=dict)

    def add(self, done: Round, kept: int, accepted: int) -> None:
        """One of any choice's, of which `kept` tokens count, `accepted` of them drafted."""
        if self.first is None:
            self.first = time.monotonic()
        if done.draft is not None or not self.pair:
            self.pair = done.pair
        self.tokens += kept
        self.rounds += 1
        self.drafted += done.num_drafted
        self.accepted += accepted
        for phase in _PHASES:
            self.phases[phase] = self.phases.get(phase, 0.0) + getattr(done.timings, phase)

    def fields(self) -> dict[str, object]:
        """For the request's line in the log; times are milliseconds."""
        fields: dict[str, object] = {}
        if self.answer_id:
            fields["answer_id"] = self.answer_id
        if self.first is not None:
            fields |= {"pair": self.pair, "tokens": self.tokens, "rounds": self.rounds}
            fields["ttft_ms"] = round((self.first - self.arrived) * 1000, 1)
            if self.drafted:
                fields |= {"drafted": self.drafted, "accepted": self.accepted}
                fields["acceptance"] = round(self.accepted / self.drafted, 3)
            fields |= {f"{phase}_ms": round(spent, 1) for phase, spent in self.phases.items()}
        if self.failure is not None:
            fields["code"] = self.failure.code or ""
        return fields


def begin_record(scope: Scope, record: RequestRecord) -> None:
    scope[_KEY] = record


def record_of(scope: Scope) -> RequestRecord | None:
    """None if the app runs without its outermost middleware, as in some tests."""
    record: RequestRecord | None = scope.get(_KEY)
    return record


def note_error(scope: Scope, metrics: GatewayMetrics, error: ApiError) -> None:
    """Counts an error that the client is told."""
    metrics.errors.labels(error.status, error.code or "").inc()
    record = record_of(scope)
    if record is not None:
        record.failure = error
