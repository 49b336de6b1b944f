"""A worker's round as a span of the trace that the gateway's request began."""

from __future__ import annotations

from protocol.messages import DraftTimings, SequenceRequest, VerifyTimings
from serving import tracing


def record_call(name: str, request: SequenceRequest, timings: DraftTimings | VerifyTimings, **counts: int) -> None:
    """One that was answered; nothing while tracing is off, or if the request is part of no trace."""
    if request.trace is None:
        return
    attributes: dict[str, str | int | float | bool] = {f"tandem.{count}": number for count, number in counts.items()}
    attributes |= {"tandem.round": request.round, "tandem.choice": request.choice_index}
    for phase in ("queue_ms", "forward_ms", "sample_ms"):
        attributes[f"tandem.{phase}"] = getattr(timings, phase)
    tracing.record(name, request.trace.traceparent, timings.total_ms / 1000, attributes)
