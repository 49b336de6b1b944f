"""The gateway's HTTP app."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from config.gateway import GatewayConfig
from server.backend import Backend
from server.described import BuildInfo, VllmNames
from server.errors import ApiError
from server.gateway import Gateway
from server.http import operations
from server.http.auth import ApiKeys
from server.http.concurrency import ConcurrencyLimit
from server.http.middleware import Authentication, Draining, RequestBoundary, send_error
from server.http.playground import playground
from server.http.record import note_error
from server.metrics import GatewayMetrics
from server.openai import chat, completions, models
from server.openai.docs import SCHEMAS
from server.openai.responses import route as responses
from server.text.model import TextModels
from serving.openapi import add_bodies
from serving.tasks import TaskOwner


def create_app(config: GatewayConfig, backend: Backend) -> FastAPI:
    """The app owns `backend` from its start to its end. Raises OSError or ValueError on an unreadable key file."""
    logging.getLogger("server").setLevel(config.log_level.upper())
    metrics = GatewayMetrics([*backend.collectors(), BuildInfo(backend.model)])
    if config.vllm_metric_names:
        metrics.registry.register(VllmNames(metrics, backend.model))
    gateway = Gateway(config, backend, TextModels(), metrics, TaskOwner())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await backend.start()
        try:
            yield
        finally:
            await gateway.background.close()
            await backend.close()
            gateway.texts.close()

    app = FastAPI(
        title="Tandem",
        summary="An OpenAI-compatible API whose text is drafted on one machine and verified on another.",
        version="1",
        lifespan=lifespan,
        docs_url=None,  # these pages load scripts from elsewhere; /openapi.json stays
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.gateway = gateway
    for router in (chat.router, completions.router, responses.router, models.router, operations.router):
        app.include_router(router)
    if config.playground:
        app.include_router(playground())
    add_bodies(app, SCHEMAS)

    async def answer_api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        note_error(request.scope, metrics, error)
        return _ErrorResponse(error)

    async def answer_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"Invalid URL ({request.method} {request.url.path[:200]})"
        if error.status_code == 405:
            message = f"{request.method} is not allowed here: {request.url.path[:200]}"
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        translated = ApiError(message, status=error.status_code, code=code, headers=dict(error.headers or {}))
        return await answer_api_error(request, translated)

    app.add_exception_handler(ApiError, answer_api_error)
    app.add_exception_handler(HTTPException, answer_http_error)
    # The last one added is the outermost.
    app.add_middleware(ConcurrencyLimit, most=config.max_concurrent_requests, metrics=metrics)
    app.add_middleware(Draining, draining=gateway.draining, metrics=metrics)
    app.add_middleware(Authentication, keys=ApiKeys(config), metrics=metrics, playground=config.playground)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "openai-processing-ms"],
        )
    app.add_middleware(RequestBoundary, metrics=metrics)
    return app


class _ErrorResponse(Response):
    def __init__(self, error: ApiError) -> None:
        super().__init__(status_code=error.status)
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_error(self._error, send)
