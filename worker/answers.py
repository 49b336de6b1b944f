"""A worker's answers: JSON, and one shape of error."""

from __future__ import annotations

from fastapi import Response
from pydantic import BaseModel

from protocol.errors import QueueFull, WireError
from worker.errors import Unauthorized

_RETRY_AFTER_SECONDS = 1


def json_response(reply: BaseModel, status: int = 200) -> Response:
    return Response(reply.__pydantic_serializer__.to_json(reply), status, media_type="application/json")


def error_response(error: WireError) -> Response:
    response = json_response(error.body(), error.status)
    if isinstance(error, QueueFull):
        response.headers["Retry-After"] = str(_RETRY_AFTER_SECONDS)
    if isinstance(error, Unauthorized):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
