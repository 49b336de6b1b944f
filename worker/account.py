"""What a worker did for one session, told in one line of the log when the session is dropped."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from protocol.messages import DraftTimings, VerifyTimings
from serving.request_id import REQUEST_ID

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Account:
    """Times are milliseconds, summed over the session's rounds. `request_id` is the latest call's."""

    request_id: str = ""
    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    queue_ms: float = 0.0
    forward_ms: float = 0.0
    sample_ms: float = 0.0
    total_ms: float = 0.0

    def add(self, timings: DraftTimings | VerifyTimings, tokens: int = 0, drafted: int = 0, accepted: int = 0) -> None:
        """One round that was answered, from within the call that asked for it."""
        self.request_id = REQUEST_ID.get() or self.request_id
        self.rounds += 1
        self.tokens += tokens
        self.drafted += drafted
        self.accepted += accepted
        self.queue_ms += timings.queue_ms
        self.forward_ms += timings.forward_ms
        self.sample_ms += timings.sample_ms
        self.total_ms += timings.total_ms

    def tell(self, role: str, session_id: str | None) -> None:
        """The line; none for a session that nothing was done for."""
        if not self.rounds:
            return
        fields: dict[str, object] = {"session_id": session_id, "rounds": self.rounds, "drafted": self.drafted}
        if role == "target":
            fields |= {"tokens": self.tokens, "accepted": self.accepted}
        phases = {name: round(getattr(self, name), 1) for name in ("queue_ms", "forward_ms", "sample_ms", "total_ms")}
        logger.info("session done", extra={"request_id": self.request_id, **fields, **phases})
