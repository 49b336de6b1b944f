"""A worker's session for one request: what it has acknowledged, and the number of its next round."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from protocol.messages import TraceContext
from server.backend import GenerationRequest
from server.fleet.worker import Worker
from server.rounds.sequence import TokenSequence


class WorkerSession:
    """`acknowledged` counts the leading tokens of the sequence that the worker is known to hold."""

    def __init__(self, worker: Worker, request: GenerationRequest, sequence: TokenSequence) -> None:
        self.worker = worker
        self.id = uuid4().hex
        self.round = 0
        self.acknowledged = 0
        self._sequence = sequence
        trace = request.traceparent
        self._constant: dict[str, Any] = {
            "session_id": self.id,
            "num_prompt_tokens": len(request.prompt),
            "choice_index": request.choice_index,
            "sampling": request.sampling,
            "grammar": request.grammar,
            "cache_salt": request.cache_salt,
            "trace": TraceContext(traceparent=trace) if trace is not None else None,
        }

    def fields(self, max_tokens: int, seconds: float) -> dict[str, Any]:
        """What every request of this session carries, for the sequence as it is now (protocol SequenceRequest)."""
        return {
            **self._constant,
            "round": self.round,
            "context": self._sequence.context(self.acknowledged),
            "max_tokens": max_tokens,
            "deadline_ms": min(max(1, int(seconds * 1000)), 3_600_000),
        }

    def acknowledge(self, length: int) -> None:
        self.acknowledged = length

    def forget(self) -> None:
        """The worker does not hold it (any more): the next context is sent whole."""
        self.acknowledged = 0
