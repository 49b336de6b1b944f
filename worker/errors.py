"""Errors of the HTTP shell itself, in the same shape as every other (protocol/errors.py)."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from protocol.errors import WireError, shortened


class InvalidMessage(WireError):
    """The body is not a message of the expected kind; `field` names the first fault."""

    status = 422
    code = "invalid_request"


class Unauthorized(WireError):
    """The bearer token is missing or wrong."""

    status = 401
    code = "unauthorized"


class NotFound(WireError):
    """No such path."""

    status = 404
    code = "not_found"


class MethodNotAllowed(WireError):
    """The path does not take this method."""

    status = 405
    code = "method_not_allowed"


class BodyTimeout(WireError):
    """The request's body did not arrive in time."""

    status = 408
    code = "body_timeout"


class BodyTooLarge(WireError):
    """The request's body exceeds the worker's limit."""

    status = 413
    code = "body_too_large"


def invalid_message(error: ValidationError, model: type[BaseModel]) -> InvalidMessage:
    """The first of pydantic's complaints, its place as a dotted path; nothing of the input is repeated."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return complaint(details[0], model)


def complaint(details: ErrorDetails, model: type[BaseModel]) -> InvalidMessage:
    if details["type"] == "json_invalid":
        return InvalidMessage("the body is not valid JSON", None)
    place = [shortened(str(part)) for part in details["loc"]]
    message = details["msg"].removeprefix("Value error, ")
    # Checks over several fields put the one at fault before their message, as pydantic places them on the whole model.
    name, colon, rest = message.partition(": ")
    if colon and name.isidentifier() and (place or name in model.model_fields):
        place.append(name)
        message = rest
    return InvalidMessage(message[:1].lower() + message[1:], ".".join(place) or None)
