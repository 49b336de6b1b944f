"""The HTTP shell that both workers share: endpoints, limits, parsing, the OpenAPI page.

Bodies are validated straight from their JSON (strict messages need pydantic's JSON mode, and it is the fastest way), so
FastAPI's own body handling is not used; the models are put into the OpenAPI document by hand.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from config.workers import WorkerConfig
from protocol.errors import ErrorBody, WireError
from serving.bodies import read_body
from serving.disconnects import CLIENT_GONE_STATUS, ClientGone, until_client_leaves
from serving.openapi import add_bodies, request_body
from worker.answers import error_response, json_response
from worker.errors import (
    BodyTimeout,
    BodyTooLarge,
    MethodNotAllowed,
    NotFound,
    invalid_message,
)
from worker.guard import PROTECTED, Guard
from worker.metrics import CLIENT_GONE, WorkerMetrics

logger = logging.getLogger(__name__)
M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]

_STATUSES = (400, 401, 408, 409, 413, 422, 429, 503)


class Shell:
    """Builds a worker's app and registers its endpoints."""

    def __init__(
        self,
        title: str,
        config: WorkerConfig,
        metrics: WorkerMetrics,
        lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
    ) -> None:
        self._config = config
        self._messages: list[type[BaseModel]] = []
        # The pages for people load scripts from elsewhere; /openapi.json stays.
        self.app = FastAPI(
            title=title, version="1", lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False
        )
        self.app.state.metrics = metrics
        token = config.worker_token.get_secret_value() if config.worker_token is not None else None
        self._endpoints: dict[str, Endpoint] = {}
        self.app.add_middleware(Guard, metrics=metrics, token=token, endpoints=self._endpoints)
        self.app.add_exception_handler(WireError, _answer_wire_error)
        self.app.add_exception_handler(ClientGone, _note_client_gone)
        self.app.add_exception_handler(HTTPException, _answer_http_error)
        add_bodies(self.app, self._messages)

    def post(
        self,
        path: str,
        message: type[M],
        reply: type[BaseModel],
        handler: Callable[[M], Coroutine[Any, Any, BaseModel]],
    ) -> None:
        """A POST endpoint: one message in, one reply out. The handler is cancelled when the client leaves."""

        async def endpoint(request: Request) -> Response:
            parsed = parse(message, await self.read_body(request))
            return json_response(await until_client_leaves(request.receive, handler(parsed)))

        self.route(path, message, reply, endpoint)

    def route(
        self,
        path: str,
        message: type[BaseModel],
        reply: type[BaseModel],
        endpoint: Endpoint,
        media_type: str = "application/json",
    ) -> None:
        """A POST endpoint that does its own reading (`read_body`) and answering.

        Guard calls it; FastAPI has it for the OpenAPI document: between two passes of a model caches are cold, and its
        layers and routing then take a tenth of what a call costs.
        """
        self._messages.append(message)
        self._endpoints[path] = _answering(endpoint)
        responses: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in _STATUSES}
        responses[200] = {"model": reply} if media_type == "application/json" else {"content": {media_type: {}}}
        self.app.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            response_model=None,
            responses=responses,
            openapi_extra=request_body(message),
        )

    def get(
        self, path: str, reply: type[BaseModel], handler: Callable[[], BaseModel], also: tuple[int, ...] = ()
    ) -> None:
        """A GET endpoint. `also`: further statuses that it may answer with."""

        async def endpoint() -> Response:
            return json_response(handler())

        statuses = _STATUSES if path.startswith(PROTECTED) else (503,)
        responses: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in (*statuses, *also)}
        self.app.add_api_route(
            path, endpoint, methods=["GET"], response_model=None, responses={**responses, 200: {"model": reply}}
        )
        # For load balancers. A separate route: OpenAPI wants one operation id per method.
        self.app.add_api_route(path, endpoint, methods=["HEAD"], response_model=None, include_in_schema=False)

    async def read_body(self, request: Request, most: int | None = None) -> bytes:
        """The whole body; `most` raises the setting's limit. Raises BodyTooLarge, BodyTimeout, ClientGone."""
        limit = max(self._config.body_limit_bytes, most or 0)
        return await read_body(
            request,
            max_bytes=limit,
            seconds=self._config.body_timeout_ms / 1000,
            too_large=BodyTooLarge(f"the body may have {limit} bytes at most"),
            too_late=BodyTimeout("the body did not arrive in time"),
        )


def _answering(endpoint: Endpoint) -> Endpoint:
    """The endpoint with its errors as answers, as FastAPI's handlers make them."""

    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except WireError as error:
            return await _answer_wire_error(request, error)
        except ClientGone as error:
            return await _note_client_gone(request, error)

    return answered


def parse(model: type[M], body: bytes) -> M:
    """Raises InvalidMessage, which names the field."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise invalid_message(error, model) from None


async def _answer_wire_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, WireError)
    request.app.state.metrics.errors.labels(error.code).inc()
    return error_response(error)


async def _note_client_gone(request: Request, error: Exception) -> Response:
    request.app.state.metrics.errors.labels(CLIENT_GONE).inc()
    return Response(status_code=CLIENT_GONE_STATUS)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code != 405:
        return await _answer_wire_error(request, NotFound("no such path"))
    response = await _answer_wire_error(request, MethodNotAllowed(f"{request.method} is not for this path"))
    response.headers.update(error.headers or {})
    return response
