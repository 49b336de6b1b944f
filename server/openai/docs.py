"""What OpenAPI says about endpoints whose bodies are read by hand (server.openai.body)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from server.openai.answers import ChatCompletionChunk, ErrorAnswer
from server.openai.chat_schema import ChatCompletionRequest
from server.openai.completion_schema import CompletionRequest, DetokenizeRequest, TokenizeRequest
from server.openai.responses.schema import ResponsesRequest
from serving.openapi import request_body

SCHEMAS: tuple[type[BaseModel], ...] = (
    ChatCompletionChunk,
    ChatCompletionRequest,
    CompletionRequest,
    ResponsesRequest,
    TokenizeRequest,
    DetokenizeRequest,
)
_ERRORS = (400, 401, 404, 405, 408, 413, 415, 429, 500, 503, 504)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorAnswer, "description": "An error"} for status in statuses}


def documented(
    body: type[BaseModel] | None,
    answer: type[BaseModel],
    *,
    chunk: type[BaseModel] | None = None,
    streams: bool = False,
) -> dict[str, Any]:
    """Arguments for a route's decorator. `chunk`: what each event of its stream holds, one of SCHEMAS."""
    arguments: dict[str, Any] = {"responses": {200: {"model": answer}, **errors(*_ERRORS)}}
    if streams:
        # OpenAPI 3.1 has no place for the schema of an event, and whether its schema of a stream is that of all of the
        # text or of each event, tools read differently: no type is said.
        told = f"events whose data is a #/components/schemas/{chunk.__name__}, then [DONE]" if chunk else "events"
        arguments["responses"][200]["content"] = {"text/event-stream": {"schema": {"description": told}}}
    if body is not None:
        arguments["openapi_extra"] = request_body(body)
    return arguments
