"""What stands before a worker's endpoints: the bearer token, counts and times, and no exception that escapes."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from fastapi import Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.errors import EngineFailure
from serving.request_id import HEADER, REQUEST_ID, valid_id
from worker.answers import error_response
from worker.errors import Unauthorized
from worker.metrics import WorkerMetrics

logger = logging.getLogger(__name__)

_ORDINARY = frozenset({409, 499})
"""What calls between workers and gateways end with where nothing is wrong: a session that is elsewhere, a verification
whose draft did not come true, a caller that has gone."""
PROTECTED = "/v1/"
"""Paths with these prefixes need the token."""


class Guard:
    """ASGI middleware, outermost: the bearer token, counts and times of requests, and no exception that escapes."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: WorkerMetrics,
        token: str | None,
        endpoints: Mapping[str, Callable[[Request], Awaitable[Response]]],
    ) -> None:
        """`endpoints`: by path, what answers POST requests instead of `app`."""
        self._app = app
        self._endpoints = endpoints
        self._metrics = metrics
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == HEADER.encode()), b"")
        REQUEST_ID.set(valid_id(given.decode("latin-1")))
        endpoint = self._endpoints.get(scope["path"]) if scope["method"] == "POST" else None
        status = 0
        began = time.perf_counter()

        def served(otherwise: str) -> str:
            """The path, if it is one that is served: metrics and log name no others."""
            return str(scope["path"] if endpoint is not None else getattr(scope.get("route"), "path", otherwise))

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if self._refuses(scope):
                await error_response(Unauthorized("a bearer token is needed"))(scope, receive, noted)
            elif endpoint is not None:
                response = await endpoint(Request(scope, receive))
                await response(scope, receive, noted)
            else:
                await self._app(scope, receive, noted)
        except Exception:
            logger.exception("%s %s failed", scope["method"], served("?"))
            if status:
                raise  # The answer has begun: the server can only cut the connection.
            failure = EngineFailure("the worker failed to serve this request")
            self._metrics.errors.labels(failure.code).inc()
            await error_response(failure)(scope, receive, noted)
        finally:
            path = served("other")
            if scope["path"].startswith(PROTECTED) and status >= 400:  # successful calls are in the session's one line
                level = logging.INFO if status in _ORDINARY else logging.WARNING
                logger.log(level, "call refused", extra={"endpoint": path, "status": status})
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.request_seconds.labels(path).observe(time.perf_counter() - began)

    def _refuses(self, scope: Scope) -> bool:
        if self._token is None or not scope["path"].startswith(PROTECTED):
            return False
        sent = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = sent.partition(b" ")
        known = hmac.compare_digest(token.strip(), self._token)
        return not known or scheme.lower() != b"bearer"
