"""Errors as OpenAI's clients know them: {"error": {message, type, param, code}} and a status."""

from __future__ import annotations

from typing import Any

from protocol import errors as wire
from server.text import exact_json

# What a client sent may be quoted, but not sent back whole.
_MAX_MESSAGE_CHARS = 1000
_MAX_PARAM_CHARS = 256


class ApiError(Exception):
    """An answer other than success. `param` names the field at fault, `code` is stable, `message` is for people."""

    status = 400
    type = "invalid_request_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int | None = None,
        retry_after: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["retry-after"] = str(max(1, round(retry_after)))

    def body(self) -> dict[str, Any]:
        message, param = _cut(self.message, _MAX_MESSAGE_CHARS), self.param and _cut(self.param, _MAX_PARAM_CHARS)
        return {"error": {"message": message, "type": self.type, "param": param, "code": self.code}}


def _cut(text: str, most: int) -> str:
    return exact_json.encodable(text if len(text) <= most else f"{text[: most - 1]}…")


class InvalidRequest(ApiError):
    """A field is missing, of the wrong type, out of range or unknown."""

    code = "invalid_value"


class NotSupported(ApiError):
    """Well-formed, but nothing here can honour it (yet)."""

    code = "unsupported_parameter"


class ContextLengthExceeded(ApiError):
    code = "context_length_exceeded"


class ModelNotFound(ApiError):
    status = 404
    code = "model_not_found"


class InvalidApiKey(ApiError):
    status = 401
    code = "invalid_api_key"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"www-authenticate": "Bearer"})


class Overloaded(ApiError):
    """No room to wait: the client may come back after `retry_after` seconds."""

    status = 429
    type = "rate_limit_error"
    code = "overloaded"

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after=retry_after)


class Unavailable(ApiError):
    """Nothing wrong with the request: the service cannot answer it now."""

    status = 503
    type = "service_unavailable_error"
    code = "service_unavailable"

    def __init__(self, message: str, retry_after: float = 5.0) -> None:
        super().__init__(message, retry_after=retry_after)


class TookTooLong(ApiError):
    """The time a whole request may take is over."""

    status = 504
    type = "server_error"
    code = "request_timeout"


class NoModelYet(Unavailable):
    """The target's model and tokenizer are not known yet."""

    code = "not_ready"


class NoTarget(Unavailable):
    """No target worker can serve the request (any more)."""

    code = "no_target"


class InternalError(ApiError):
    """A fault of our own."""

    status = 500
    type = "server_error"
    code = "internal_error"


def from_wire(error: wire.WireError) -> ApiError:
    """What a worker's refusal means to the gateway's own client."""
    if isinstance(error, wire.ContextTooLong):
        return ContextLengthExceeded(error.message, param="messages")
    if isinstance(error, wire.Unsupported):
        return NotSupported(error.message, param=error.field)
    if isinstance(error, wire.QueueFull):
        return Overloaded(error.message)
    if isinstance(error, wire.BadRequest):
        return InvalidRequest(error.message, param=error.field)
    return Unavailable(error.message)
