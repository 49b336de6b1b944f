"""What the calls of Tandem and AsyncTandem raise. Wrong arguments are TypeError and ValueError as everywhere."""

from __future__ import annotations


class TandemError(Exception):
    """Everything that goes wrong with a request or a model is one of these."""


class ModelUnavailable(TandemError):
    """A model can't be loaded, doesn't fit the other one, or a worker can't be reached."""


class RequestFailed(TandemError):
    """The gateway refused a request, or could not go on with it.

    `status` is the HTTP status that its API gives such an error (400: something is wrong with the request; 429: too
    much at once; 503: no target can serve it). `code` is stable, `param` names the field at fault; either may be None.
    """

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(f"{message} ({param})" if param and param not in message else message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param


class Misuse(TandemError, RuntimeError):
    """The object was used where it can't be: after it was closed, in another event loop, in a forked process."""
