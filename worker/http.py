"""The HTTP shell that both workers share: limits, parsing, one shape of error, disconnects, the OpenAPI page.

Bodies are validated straight from their JSON (strict messages need pydantic's JSON mode, and it is the fastest way), so
FastAPI's own body handling is not used; the models are put into the OpenAPI document by hand.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from config.workers import WorkerConfig
from protocol.errors import EngineFailure, ErrorBody, QueueFull, WireError
from worker.errors import (
    BodyTimeout,
    BodyTooLarge,
    ClientGone,
    MethodNotAllowed,
    NotFound,
    Unauthorized,
    invalid_message,
)
from worker.metrics import WorkerMetrics

logger = logging.getLogger(__name__)
M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

_PROTECTED = "/v1/"
_RETRY_AFTER_SECONDS = 1
_STATUSES = (400, 401, 408, 409, 413, 422, 429, 503)
_CANCEL_SECONDS = 5.0


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
        self.app.add_middleware(Guard, metrics=metrics, token=token)
        self.app.add_exception_handler(WireError, _answer_wire_error)
        self.app.add_exception_handler(HTTPException, _answer_http_error)
        self.app.openapi = self._openapi  # type: ignore[method-assign]

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
            return json_response(await until_gone(request, handler(parsed)))

        self.route(path, message, reply, endpoint)

    def route(
        self,
        path: str,
        message: type[BaseModel],
        reply: type[BaseModel],
        endpoint: Callable[[Request], Awaitable[Response]],
        media_type: str = "application/json",
    ) -> None:
        """A POST endpoint that does its own reading (`read_body`) and answering."""
        self._messages.append(message)
        schema = {"$ref": f"#/components/schemas/{message.__name__}"}
        content = {"application/json": {"schema": schema}}
        responses: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in _STATUSES}
        responses[200] = {"model": reply} if media_type == "application/json" else {"content": {media_type: {}}}
        self.app.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            response_model=None,
            responses=responses,
            openapi_extra={"requestBody": {"required": True, "content": content}},
        )

    def get(
        self, path: str, reply: type[BaseModel], handler: Callable[[], BaseModel], also: tuple[int, ...] = ()
    ) -> None:
        """A GET endpoint. `also`: further statuses that it may answer with."""

        async def endpoint() -> Response:
            return json_response(handler())

        statuses = _STATUSES if path.startswith(_PROTECTED) else (503,)
        responses: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in (*statuses, *also)}
        self.app.add_api_route(
            path, endpoint, methods=["GET"], response_model=None, responses={**responses, 200: {"model": reply}}
        )

    async def read_body(self, request: Request) -> bytes:
        """The whole body. Raises BodyTooLarge, BodyTimeout, ClientGone."""
        limit = self._config.body_limit_bytes
        too_large = BodyTooLarge(f"the body may have {limit} bytes at most")
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise too_large
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._config.body_timeout_ms / 1000):
                while True:
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone("the client left before its request was whole")
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if size > limit:
                        raise too_large
                    if not message.get("more_body", False):
                        return b"".join(chunks)
        except TimeoutError:
            raise BodyTimeout("the body did not arrive in time") from None

    def _openapi(self) -> dict[str, Any]:
        if self.app.openapi_schema is None:
            schema = get_openapi(title=self.app.title, version=self.app.version, routes=self.app.routes)
            _, messages = models_json_schema(
                [(message, "validation") for message in self._messages], ref_template="#/components/schemas/{model}"
            )
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(messages.get("$defs", {}))
            self.app.openapi_schema = schema
        return self.app.openapi_schema


class Guard:
    """ASGI middleware, outermost: the bearer token, counts and times of requests, and no exception that escapes."""

    def __init__(self, app: ASGIApp, metrics: WorkerMetrics, token: str | None) -> None:
        self._app = app
        self._metrics = metrics
        self._token = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0
        began = time.perf_counter()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if self._refuses(scope):
                await error_response(Unauthorized("a bearer token is needed"))(scope, receive, noted)
            else:
                await self._app(scope, receive, noted)
        except Exception:
            logger.exception("%s %s failed", scope["method"], getattr(scope.get("route"), "path", "?"))
            if status:
                raise  # The answer has begun: the server can only cut the connection.
            failure = EngineFailure("the worker failed to serve this request")
            self._metrics.errors.labels(failure.code).inc()
            await error_response(failure)(scope, receive, noted)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.request_seconds.labels(path).observe(time.perf_counter() - began)

    def _refuses(self, scope: Scope) -> bool:
        if self._token is None or not scope["path"].startswith(_PROTECTED):
            return False
        sent = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return not hmac.compare_digest(sent, self._token)


def parse(model: type[M], body: bytes) -> M:
    """Raises InvalidMessage, which names the field."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise invalid_message(error, model) from None


def json_response(reply: BaseModel, status: int = 200) -> Response:
    return Response(reply.__pydantic_serializer__.to_json(reply), status, media_type="application/json")


def error_response(error: WireError) -> Response:
    response = json_response(error.body(), error.status)
    if isinstance(error, QueueFull):
        response.headers["Retry-After"] = str(_RETRY_AFTER_SECONDS)
    if isinstance(error, Unauthorized):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def until_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; it is cancelled, and ClientGone raised, when the client leaves before."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_see)
    gone = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone("the client left before it was answered")
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_SECONDS)


def _see(task: asyncio.Future[Any]) -> None:
    """Nothing complains of an exception that nobody waits for any more, such as StaleRound for a client that left."""
    if not task.cancelled():
        task.exception()


async def disconnected(receive: Receive) -> None:
    """Returns when the client has left; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class LinesResponse(Response):
    """JSON lines, each sent as soon as there is one. A reader that leaves, or stalls, ends the iterator at once."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncGenerator[BaseModel, None], stall_seconds: float) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._lines = lines
        self._stall_seconds = stall_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(disconnected(receive))
        sending = asyncio.ensure_future(self._send(send))
        sending.add_done_callback(_see)
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except TimeoutError:
            # Returning in mid-answer has the server close the connection: who does not read can be told no more.
            logger.warning("a reader left its stream unread for %g s and was cut off", self._stall_seconds)
        finally:
            gone.cancel()
            if not sending.done():
                sending.cancel()
                await asyncio.wait({sending}, timeout=_CANCEL_SECONDS)
            await self._lines.aclose()

    async def _send(self, send: Send) -> None:
        async def bounded(message: Message) -> None:
            async with asyncio.timeout(self._stall_seconds):
                await send(message)

        await bounded({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for line in self._lines:
            body = line.__pydantic_serializer__.to_json(line) + b"\n"
            await bounded({"type": "http.response.body", "body": body, "more_body": True})
        await bounded({"type": "http.response.body", "body": b"", "more_body": False})


async def _answer_wire_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, WireError)
    request.app.state.metrics.errors.labels(error.code).inc()
    return error_response(error)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code != 405:
        return await _answer_wire_error(request, NotFound("no such path"))
    response = await _answer_wire_error(request, MethodNotAllowed(f"{request.method} is not for this path"))
    response.headers.update(error.headers or {})
    return response
