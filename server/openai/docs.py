"""What OpenAPI says about endpoints whose bodies are read by hand (server.openai.body)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from server.openai.answers import ErrorAnswer
from server.openai.chat_schema import ChatCompletionRequest
from server.openai.completion_schema import CompletionRequest, DetokenizeRequest, TokenizeRequest
from server.openai.responses.schema import ResponsesRequest
from serving.openapi import request_body

BODIES: tuple[type[BaseModel], ...] = (
    ChatCompletionRequest,
    CompletionRequest,
    ResponsesRequest,
    TokenizeRequest,
    DetokenizeRequest,
)
_ERRORS = (400, 401, 404, 405, 408, 413, 415, 429, 500, 503, 504)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorAnswer, "description": "An error"} for status in statuses}


def documented(body: type[BaseModel] | None, answer: type[BaseModel], *, streams: bool = False) -> dict[str, Any]:
    """Arguments for a route's decorator."""
    arguments: dict[str, Any] = {"responses": {200: {"model": answer}, **errors(*_ERRORS)}}
    if streams:
        arguments["responses"][200]["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    if body is not None:
        arguments["openapi_extra"] = request_body(body)
    return arguments
