"""What can go wrong between gateway and worker, by what the caller should do about it."""

from __future__ import annotations

from protocol import errors as wire
from protocol.errors import ErrorDetail, WireError

_REFUSALS: dict[str, type[WireError]] = {
    error.code: error for error in (wire.BadRequest, wire.Unsupported, wire.ContextTooLong)
}

REASONS = (
    "connect", "cut", "closed", "timeout", "bad_answer", "busy", "error", "not_ready", "refused", "unauthorized",
    "left_alone", "session_lost",
)  # fmt: skip
"""Every `reason` of a WorkerFailure that is counted against a worker."""
RESEND_REASONS = ("context_mismatch", "stale_round", "conflict")
"""Every `reason` of a SessionLost."""


class WorkerFailure(Exception):
    """The worker did not do its work. Every call is idempotent, so it may be asked of any worker again.

    `reason` is short and stable (a metric's label); `lost`: the worker could not be reached, or takes no calls, so that
    what is known of it has to be looked at again before it gets more work.
    """

    lost = False

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class WorkerUnreachable(WorkerFailure):
    """No connection, or it was cut before the whole answer was here."""

    lost = True


class TakesNoCalls(WorkerFailure):
    """It answers, but serves nothing now: it is about to end, or still loads its model."""

    lost = True


class TooLate(WorkerFailure):
    """No answer within the deadline."""

    def __init__(self, message: str) -> None:
        super().__init__("timeout", message)


class BadAnswer(WorkerFailure):
    """An answer that can't be true: not JSON, too large, or against what was asked."""

    def __init__(self, message: str) -> None:
        super().__init__("bad_answer", message)


class Busy(WorkerFailure):
    """Its queue is full. `retry_after` is seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__("busy", message)
        self.retry_after = retry_after


class SessionLost(WorkerFailure):
    """The worker does not hold the context this call builds on (409): send it whole."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)


class Refused(WorkerFailure):
    """The worker understood the request and will not honour it, nor would its replicas: `error` has the reason."""

    def __init__(self, error: WireError) -> None:
        super().__init__("refused", error.message)
        self.error = error

    def refusal(self) -> WireError:
        """The reason, to be raised. Not `error` itself: it would have this as its cause, which has it, a cycle."""
        return type(self.error)(self.error.message, self.error.field)


def failure_of(status: int, detail: ErrorDetail, where: str = "", retry_after: float = 1.0) -> WorkerFailure:
    """What a worker's error means to its caller; `where` names the call, `retry_after` is what the worker asked for."""
    code, message = detail.code, detail.message[:500]
    text = f"{where}: {message}" if where else message
    if status == 409:
        return SessionLost(code if code in ("context_mismatch", "stale_round") else "conflict", text)
    if status == 429:
        return Busy(text, retry_after)
    if status == 408:
        return TooLate(text)
    if status in (400, 413, 422):
        return Refused(_REFUSALS.get(code, wire.BadRequest)(message, detail.field))
    if status in (401, 403):
        return WorkerFailure("unauthorized", f"{where}: the worker does not accept this gateway's token")
    return TakesNoCalls(code, text) if code == "not_ready" else WorkerFailure("error", text)
