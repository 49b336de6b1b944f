"""A round as a span of its request's trace."""

from __future__ import annotations

from server.backend import Round
from server.text.choice import Choice
from serving import tracing

_PHASES = ("draft", "verify_forward", "sample", "queue", "network")


def record_round(choice: Choice, done: Round, kept: int) -> None:
    """One that `choice` has just taken, with its first `kept` tokens; nothing without a trace that it belongs to."""
    if choice.request.traceparent is None:
        return
    attributes: dict[str, str | int | float | bool] = {
        "tandem.choice": choice.index,
        "tandem.round": choice.counts.rounds - 1,
        "tandem.pair": done.pair,
        "tandem.tokens": kept,
        "tandem.drafted": done.num_drafted,
        "tandem.accepted": min(done.num_accepted, kept),
        "tandem.candidates": done.num_candidates,
    }
    if done.source is not None:
        attributes["tandem.source"] = done.source
    attributes |= {f"tandem.{phase}_ms": getattr(done.timings, phase) for phase in _PHASES}
    tracing.record("round", choice.request.traceparent, done.timings.total / 1000, attributes)
