"""What the parts of one request share."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from server.rounds import GenerationRequest
from server.sequence import TokenSequence
from server.workers.failures import WorkerFailure
from server.workers.metrics import WorkerMetrics
from server.workers.session import Session
from server.workers.tasks import BackgroundTasks

_DELETE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request, its tokens so far, and where its loose ends go."""

    request: GenerationRequest
    sequence: TokenSequence
    metrics: WorkerMetrics
    background: BackgroundTasks

    def delete(self, session: Session) -> None:
        """Free a session without waiting for it. One that can't be freed is evicted by its worker in time."""

        async def delete() -> None:
            with suppress(WorkerFailure):
                await session.worker.client.delete_session(session.id, _DELETE_SECONDS)

        self.background.spawn(delete())
