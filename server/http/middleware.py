"""What happens to every request: its id and time, errors nobody caught, keys, and the end of the process."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
import uuid
from contextlib import suppress
from threading import Event

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import ApiError, InternalError, InvalidApiKey, Unavailable
from server.http.auth import ApiKeys
from server.http.playground import is_page
from server.http.record import RequestRecord, begin_record, note_error
from server.metrics import GatewayMetrics
from serving import tracing
from serving.connection import abort
from serving.disconnects import CLIENT_GONE_STATUS, ClientGone
from serving.request_id import HEADER, REQUEST_ID, valid_id

logger = logging.getLogger(__name__)

_OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
GENERATING_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"})


async def send_error(error: ApiError, send: Send) -> None:
    body = orjson.dumps(error.body())
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


class RequestBoundary:
    """Outermost: gives each request an id and a time, counts it, and answers for what nobody caught."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        arrived = time.monotonic()
        request_id = valid_id(Headers(scope=scope).get(HEADER, "")) or uuid.uuid4().hex
        REQUEST_ID.set(request_id)
        record = RequestRecord(request_id, arrived)
        begin_record(scope, record)
        given = tracing.valid_traceparent(Headers(scope=scope).get("traceparent"))
        span = tracing.begin("request", given) if scope["path"] in GENERATING_PATHS else None
        record.traceparent = given if span is None else span.traceparent
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[HEADER] = request_id
                headers["openai-processing-ms"] = str(round((time.monotonic() - arrived) * 1000))
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientGone:
            if status:
                await _cut(scope, receive)
            status = CLIENT_GONE_STATUS
        except Exception as error:  # noqa: BLE001 - the last to catch it
            # Its message could hold text of the request: only where it happened is logged.
            where = "".join(traceback.format_tb(error.__traceback__))
            logger.error("request %s failed: %s\n%s", request_id, type(error).__name__, where)
            if not status:
                failure = InternalError("the server failed to answer because of a fault of its own")
                note_error(scope, self._metrics, failure)
                await send_error(failure, sending)
        finally:
            if record.failure is not None and status != CLIENT_GONE_STATUS:
                status = record.failure.status  # of one inside a stream, which had begun with a 200
            path = _path(scope)
            self._metrics.http_requests.labels(_known(scope["method"]), path, status).inc()
            elapsed = (time.monotonic() - arrived) * 1000
            level = logging.DEBUG if path in _OPEN_PATHS else logging.INFO  # asked every few seconds
            method = _known(scope["method"])
            facts = {"method": method, "path": path, "status": status, "ms": round(elapsed, 1), **record.fields()}
            logger.log(level, "%s %s %d", method, path, status, extra={"request_id": request_id, **facts})
            if span is not None:
                span.end(_attributes(request_id, facts), failed=status >= 500)


def _attributes(request_id: str, facts: dict[str, object]) -> dict[str, str | int | float | bool]:
    """Of a request's span: its line in the log, under OpenTelemetry's names where there are such."""
    names = {"method": "http.request.method", "path": "http.route", "status": "http.response.status_code"}
    own = {names.get(name, f"tandem.{name}"): value for name, value in facts.items()}
    return {"tandem.request_id": request_id} | {k: v for k, v in own.items() if isinstance(v, str | int | float)}


def _path(scope: Scope) -> str:
    """The path's pattern, also where the request was refused before it was routed."""
    route = scope.get("route")
    if route is None:
        routes = getattr(scope.get("app"), "routes", ())
        known = [route for route in routes if isinstance(route, Route)]
        route = next((one for one in known if one.matches(scope)[0] is not Match.NONE), None)
    return getattr(route, "path", "unknown")


async def _cut(scope: Scope, receive: Receive) -> None:
    """Ends the connection of a client that does not read: closing would wait for it."""
    if abort(scope):
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await receive()  # the disconnect, now that there is one


def _known(method: str) -> str:
    """Labels come from a fixed set, or strangers could fill the memory."""
    return method if method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH") else "other"


class Authentication:
    """Refuses callers without a key, except for what load balancers and Prometheus ask, and for the playground."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, metrics: GatewayMetrics, playground: bool = False) -> None:
        self._app = app
        self._playground = playground
        self._keys = keys
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_open(scope["path"]):
            authorization = Headers(scope=scope).get("authorization")
            if not self._keys.allow(authorization):
                message = "Incorrect API key provided." if authorization else "You didn't provide an API key."
                error = InvalidApiKey(message)
                note_error(scope, self._metrics, error)
                await send_error(error, send)
                return
        await self._app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path in _OPEN_PATHS or (self._playground and is_page(path))


class Draining:
    """Refuses what would begin once the process is to end, and answers what is cut off before it had an answer; health
    and metrics are still told."""

    def __init__(self, app: ASGIApp, draining: Event, metrics: GatewayMetrics) -> None:
        self._app = app
        self._draining = draining
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._draining.is_set() and scope["path"] not in ("/health", "/metrics"):
            await self._refuse(scope, send)
            return
        answered = False

        async def noting(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:
            # The server cancels what outlasts the drain, such as a prompt that waits for a thread.
            if answered or not self._draining.is_set():
                raise
            await self._refuse(scope, send)

    async def _refuse(self, scope: Scope, send: Send) -> None:
        error = Unavailable("the server is shutting down", retry_after=1.0)
        error.headers["connection"] = "close"
        note_error(scope, self._metrics, error)
        await send_error(error, send)
