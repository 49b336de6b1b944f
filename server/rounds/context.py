"""What the parts of one request share."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from server.backend import GenerationRequest
from server.fleet.failures import WorkerFailure
from server.fleet.metrics import FleetMetrics
from server.rounds.sequence import TokenSequence
from server.rounds.session import WorkerSession
from serving.tasks import TaskOwner

_DELETE_SECONDS = 3.0
# Seconds after each try; a connection may be cut, a worker restarting.
_DELETE_PAUSES = (0.1, 0.5, 2.0, 5.0)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request, its tokens so far, and where its loose ends go."""

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
