"""From the bytes of a request's body to a checked request, with errors that name the field."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import orjson
from fastapi import Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from server.errors import ApiError, InvalidRequest, NotSupported
from server.gateway import gateway_of
from server.openai import options
from server.sse import ClientGone

R = TypeVar("R", bound=options.Request)

_MAX_MESSAGE_CHARS = 500


async def read_body(request: Request, max_bytes: int, seconds: float) -> bytes:
    """Raises ApiError with 413 beyond `max_bytes`, 408 where it takes longer than `seconds`."""
    too_large = ApiError(f"the request's body exceeds {max_bytes} bytes", status=413, code="request_too_large")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise too_large
                chunks.append(chunk)
    except TimeoutError:
        raise ApiError("the request's body did not arrive in time", status=408, code="request_timeout") from None
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(chunks)


def parse(model: type[R], body: bytes) -> R:
    """Raises InvalidRequest or NotSupported."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the request's body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise InvalidRequest("the request's body must be a JSON object", code="invalid_json")
    refused: dict[str, tuple[Any, ...]] = getattr(model, "REFUSED", {})
    for name in refused.keys() & data.keys():
        value = data.pop(name)
        if not any(type(value) is type(neutral) and value == neutral for neutral in refused[name]):
            raise NotSupported(f"'{name}' is not supported", param=name)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise invalid(error, data) from None


def invalid(error: ValidationError, data: Any) -> InvalidRequest:
    """The error that goes deepest into the data: of a union's many, the one about the member that was meant."""
    found = [
        (_path(details["loc"], data, details["type"] == "missing"), details)
        for details in error.errors(include_url=False)
    ]
    path, details = max(found, key=lambda item: len(item[0]))
    param = _spell(path)
    if details["type"] == "extra_forbidden":
        return InvalidRequest(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    if details["type"] == "missing":
        return InvalidRequest(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
    message = details["msg"].removeprefix("Value error, ")[:_MAX_MESSAGE_CHARS]
    return InvalidRequest(f"Invalid value for '{param}': {message}", param=param, code="invalid_value")


def _path(location: Sequence[str | int], data: Any, missing: bool) -> list[str | int]:
    """The location without the names of union members, which are no part of the request."""
    path: list[str | int] = []
    for step in location:
        known = step in data if isinstance(data, dict) else isinstance(data, list) and isinstance(step, int)
        if known:
            path.append(step)
            data = data[step]
    if missing:
        path.append(location[-1])
    return path


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
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(
                "the request's content-type must be application/json", status=415, code="unsupported_media_type"
            )
        return parse(model, await read_body(request, config.max_body_bytes, config.body_timeout_seconds))

    return read
