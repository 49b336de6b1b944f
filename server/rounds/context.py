"""What the parts of one request share: its tokens, and its sessions on workers."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from protocol.messages import TraceContext
from server.backend import GenerationRequest
from server.fleet.failures import WorkerFailure
from server.fleet.metrics import FleetMetrics
from server.fleet.worker import Worker
from server.rounds.sequence import TokenSequence
from serving.tasks import TaskOwner


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


_DELETE_SECONDS = 3.0
# Seconds after each try; a connection may be cut, a worker restarting.
_DELETE_PAUSES = (0.1, 0.5, 2.0, 5.0)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request, its tokens so far, and the owner of its background tasks."""

    request: GenerationRequest
    sequence: TokenSequence
    metrics: FleetMetrics
    background: TaskOwner

    def delete(self, session: WorkerSession) -> None:
        """Free a session without waiting for it. One that can't be freed expires on its worker."""

        async def delete() -> None:
            for pause in _DELETE_PAUSES:
                try:
                    await session.worker.client.delete_session(session.id, _DELETE_SECONDS)
                    return
                except WorkerFailure as failure:
                    log.debug("session %s is not deleted yet: %s", session.id, failure.message)
                    await asyncio.sleep(pause)

        self.background.start(delete())
