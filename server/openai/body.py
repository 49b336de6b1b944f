"""From the bytes of a request's body to a checked request, with errors that name the field."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from server.errors import ApiError, InvalidRequest, NotSupported
from server.gateway import gateway_of
from server.openai import options
from server.text import exact_json
from serving.bodies import read_body

R = TypeVar("R", bound=options.Request)

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_CONVERSATIONS = ("messages", "input")
_MAX_ERRORS = 100  # of one request, searched for the one to report


def parse(model: type[R], body: bytes) -> R:
    """Raises InvalidRequest or NotSupported."""
    try:
        data = _read(body)
    except ValueError as error:
        raise InvalidRequest(f"the request's body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise InvalidRequest("the request's body must be a JSON object", code="invalid_json")
    if _SURROGATE_ESCAPE.search(body):
        _check_strings(data)
    refused: dict[str, tuple[Any, ...]] = getattr(model, "REFUSED", {})
    for name in refused.keys() & data.keys():
        value = data.pop(name)
        if not any(_equal(value, neutral) for neutral in refused[name]):
            raise NotSupported(f"'{name}' is not supported", param=name)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise invalid(error, data) from None


def _equal(value: Any, neutral: Any) -> bool:
    """As JSON has it: true is not 1, but 1.0 is."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def _check_strings(data: dict[str, Any]) -> None:
    """Half a surrogate pair is no text, and nothing can be asked with it. Raises InvalidRequest.

    In a conversation it is allowed, since clients cut what they quote anywhere: it becomes U+FFFD.
    """
    for path, value in _values({name: value for name, value in data.items() if name not in _CONVERSATIONS}):
        names = (name for name in path[-1:] if isinstance(name, str))
        if any(not exact_json.is_encodable(text) for text in (*names, value) if isinstance(text, str)):
            param = exact_json.encodable(_spell(path))
            raise InvalidRequest(f"Invalid value for '{param}': holds half a surrogate pair", param=param)


def _read(body: bytes) -> Any:
    """Raises ValueError for what is not JSON, and InvalidRequest for a number that no float holds, by its field."""
    try:
        return exact_json.loads(body)
    except exact_json.TooLarge as error:
        values = _values(exact_json.loads(body, number=float))
        infinite = (path for path, value in values if isinstance(value, float) and math.isinf(value))
        param = exact_json.encodable(_spell(next(infinite, ())))
        where = f"Invalid value for '{param}'" if param else "Invalid body"
        raise InvalidRequest(f"{where}: {error}", param=param or None) from None


def _values(data: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value in it with the way there, itself not included."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), data)]
    while waiting:
        path, value = waiting.pop()
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for step, one in inner:
            yield (*path, step), one
            waiting.append(((*path, step), one))


def invalid(error: ValidationError, data: Any) -> InvalidRequest:
    """The error that goes deepest into the data: of a union's many, the one about the member that was meant."""
    found = [(_path(details, data), details) for details in error.errors(include_url=False)[:_MAX_ERRORS]]
    path, details = max(found, key=lambda item: len(item[0]))
    param = _spell(path)
    if details["type"] == "extra_forbidden":
        return InvalidRequest(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    if details["type"] in ("missing", "union_tag_not_found"):
        return InvalidRequest(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
    # Where a field may be one of several things, each of them says what it wanted; one that says more is the one meant.
    same = [(_wanted(other), other["msg"]) for where, other in found if where == path]
    said = [message.removeprefix("Value error, ") for wanted, message in same if wanted is None]
    message = said[0] if said else f"must be {' or '.join(dict.fromkeys(wanted for wanted, _ in same if wanted))}"
    return InvalidRequest(f"Invalid value for '{param}': {message}", param=param, code="invalid_value")


_WANTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dict_type": "an object",
    "list_type": "a list",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "string_too_short": "at least {min_length} characters long",
    "string_too_long": "at most {max_length} characters long",
    "too_short": "a list of {min_length} or more",
    "too_long": "a list of {max_length} or fewer",
    "string_pattern_mismatch": "text that matches {pattern}",
    "literal_error": "one of {expected}",
    "union_tag_invalid": "one of {expected_tags}",
}
"""By pydantic's name of an error: what the value must be. Other errors keep their own message."""


def _wanted(details: ErrorDetails) -> str | None:
    """What the value must be; None: the message says it all."""
    wanted = _WANTED.get(details["type"])
    if wanted is None:
        return None
    context = details.get("ctx", {})
    filled = wanted.format(**{name: f"{it:g}" if isinstance(it, float) else it for name, it in context.items()})
    return filled.removeprefix("one of ") if " or " not in filled and "," not in filled else filled


def _path(details: ErrorDetails, data: Any) -> tuple[str | int, ...]:
    """Where in the data the error is: its location without the names of union members, which are no part of it.

    A member may be named as a field beside it is, so of the ways to read the location the one is meant that leads to
    the very value the error is about.
    """
    location = details["loc"]
    missing = location[-1:] if details["type"] == "missing" else ()
    if details["type"].startswith("union_tag_") and "discriminator" in details.get("ctx", {}):
        name = details["ctx"]["discriminator"]
        missing = (name.strip("'"),) if name.startswith("'") else ()
    where = location[:-1] if details["type"] == "missing" else location
    reached = _reached(where, data)
    # A name that is wrong itself, as in metadata, is no value of the data.
    furthest = max((path for path, _ in reached.values()), key=len)
    path, _ = reached.get(id(details["input"]), (furthest, None))
    return (*path, *missing)


def _reached(location: tuple[str | int, ...], data: Any) -> dict[int, tuple[tuple[str | int, ...], Any]]:
    """The values that the location may lead to, by id, each with its path: of several, what leaves out early steps."""
    reached: dict[int, tuple[tuple[str | int, ...], Any]] = {id(data): ((), data)}
    for step in location:
        following: dict[int, tuple[tuple[str | int, ...], Any]] = {}
        for path, value in reached.values():
            if isinstance(step, str):
                following.setdefault(id(value), (path, value))
            if _has(value, step):
                following.setdefault(id(value[step]), ((*path, step), value[step]))
        reached = following
    return reached


def _has(value: Any, step: str | int) -> bool:
    """Whether a way that may not be the one meant goes on here."""
    if isinstance(value, dict):
        return step in value
    return isinstance(value, list) and isinstance(step, int) and step < len(value)


def _spell(path: Sequence[str | int]) -> str:
    """messages[0].content, as OpenAI writes it."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def body_of(model: type[R]) -> Callable[[Request], Awaitable[R]]:
    """A FastAPI dependency that reads, checks and returns the body."""

    async def read(request: Request) -> R:
        config = gateway_of(request).config
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise ApiError(
                f"the request's body must not be compressed; its content-encoding is '{encoding[:40]}'",
                status=415,
                code="unsupported_media_type",
            )
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(
                "the request's content-type must be application/json", status=415, code="unsupported_media_type"
            )
        body = await read_body(
            request,
            max_bytes=config.max_body_bytes,
            seconds=config.body_timeout_seconds,
            too_large=ApiError(
                f"the request's body exceeds {config.max_body_bytes} bytes", status=413, code="request_too_large"
            ),
            too_late=ApiError("the request's body did not arrive in time", status=408, code="request_timeout"),
        )
        return parse(model, body)

    return read
