"""Errors as workers answer them: a status, a stable code, a sentence, and the field at fault."""

from __future__ import annotations

from pydantic import BaseModel

_LONGEST_NAME = 40


def shortened(name: str) -> str:
    """A name in a message may be its sender's own (a key, an unknown field), and as long as the body allows."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


class ErrorDetail(BaseModel):
    """`field` is a dotted path into the request ("context.token_ids.3"), null if no single field is at fault."""

    code: str
    message: str
    field: str | None = None


class ErrorBody(BaseModel):
    error: ErrorDetail


class WireError(Exception):
    """An error with a meaning on the wire; every worker failure that a caller may see is one of these."""

    status = 400
    code = "bad_request"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field

    def body(self) -> ErrorBody:
        return ErrorBody(error=ErrorDetail(code=self.code, message=self.message, field=self.field))


class BadRequest(WireError):
    """The request is malformed, or a value is out of range."""


class Unsupported(WireError):
    """A well-formed request for something this worker cannot honour; `field` names it."""

    code = "unsupported"


class ContextTooLong(WireError):
    """The context and what it asks for do not fit the model or its key-value memory."""

    code = "context_too_long"


class ContextMismatch(WireError):
    """The worker does not hold the prefix that `context.start` builds on: send it again from 0."""

    status = 409
    code = "context_mismatch"


class UnknownVocabulary(WireError):
    """The worker has not learned these ids, or has forgotten them: send it the target's tokenizer (again)."""

    status = 409
    code = "unknown_vocabulary"


class StaleRound(WireError):
    """A newer round of the session has been seen; this one's answer is no longer needed."""

    status = 409
    code = "stale_round"


class NotFollowed(WireError):
    """The verdict that a verification was to follow was none of its alternatives: nothing was verified."""

    status = 409
    code = "not_followed"


class DeadlineExceeded(WireError):
    """The caller's deadline passed before the work was done."""

    status = 408
    code = "deadline_exceeded"


class QueueFull(WireError):
    """The queue is full; try again after a moment (the answer carries Retry-After)."""

    status = 429
    code = "queue_full"


class NotReady(WireError):
    """The model is still loading, or the worker is draining."""

    status = 503
    code = "not_ready"


class EngineFailure(WireError):
    """The engine could not compute an answer for this request (NaN logits, for instance)."""

    status = 503
    code = "engine_failure"
