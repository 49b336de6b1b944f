"""What OpenAPI says about endpoints whose bodies are read by hand (server.openai.body)."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.openai.answers import ErrorAnswer
from server.openai.chat_schema import ChatCompletionRequest
from server.openai.completion_schema import CompletionRequest, DetokenizeRequest, TokenizeRequest
from server.openai.responses.schema import ResponsesRequest

_REQUESTS: tuple[type[BaseModel], ...] = (
    ChatCompletionRequest,
    CompletionRequest,
    ResponsesRequest,
    TokenizeRequest,
    DetokenizeRequest,
)
_ERRORS = (400, 401, 404, 405, 408, 413, 415, 429, 500, 503, 504)
_REFERENCE = "#/components/schemas/{model}"


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorAnswer, "description": "An error"} for status in statuses}


def documented(body: type[BaseModel] | None, answer: type[BaseModel], *, streams: bool = False) -> dict[str, Any]:
    """Arguments for a route's decorator."""
    arguments: dict[str, Any] = {"responses": {200: {"model": answer}, **errors(*_ERRORS)}}
    if streams:
        arguments["responses"][200]["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    if body is not None:
        schema = {"$ref": _REFERENCE.format(model=body.__name__)}
        arguments["openapi_extra"] = {
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        }
    return arguments


def complete_openapi(app: FastAPI) -> None:
    """Adds the schemas of the bodies to what FastAPI writes about the app."""
    original = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = original()
            _, definitions = models_json_schema([(model, "validation") for model in _REQUESTS], ref_template=_REFERENCE)
            document["components"]["schemas"].update(definitions["$defs"])
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
