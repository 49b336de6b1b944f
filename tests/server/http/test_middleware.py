"""What stands around every request: ids and faults, keys, and the end of the process."""

from __future__ import annotations

import asyncio
import json
import logging
from threading import Event
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.types import ASGIApp, Receive, Scope, Send

from config.gateway import GatewayConfig
from server.errors import NoTarget
from server.http.auth import ApiKeys
from server.http.middleware import Authentication, Draining, RequestBoundary
from server.http.record import note_error
from server.metrics import GatewayMetrics
from serving.disconnects import CLIENT_GONE_STATUS, ClientGone

CHAT = "/v1/chat/completions"


async def ok(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def ask(app: ASGIApp, path: str = CHAT, method: str = "POST", **headers: str) -> tuple[int, dict[str, str], Any]:
    """Status, headers and body of an answer; status 0: none began."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    await app({"type": "http", "method": method, "path": path, "headers": raw}, receive, send)
    starts = [message for message in sent if message["type"] == "http.response.start"]
    assert len(starts) <= 1
    if not starts:
        return 0, {}, None
    got = {name.decode(): value.decode() for name, value in starts[0]["headers"]}
    body = b"".join(message["body"] for message in sent if message["type"] == "http.response.body")
    return starts[0]["status"], got, json.loads(body or b"null")


def counted(metrics: GatewayMetrics, status: int, method: str = "POST") -> float:
    return metrics.http_requests.labels(method, "unknown", status)._value.get()


def test_an_id_that_was_sent_comes_back_and_another_is_made_up() -> None:
    app = RequestBoundary(ok, GatewayMetrics())
    _, sent, _ = asyncio.run(ask(app, x_request_id="mine-1"))
    assert sent["x-request-id"] == "mine-1"
    _, drawn, _ = asyncio.run(ask(app, x_request_id="not an id\n"))
    assert len(drawn["x-request-id"]) == 32


def test_a_fault_that_nobody_caught_is_an_answer_and_its_words_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    prompt = " ".join(["quite", "secret"])

    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError(prompt)

    metrics = GatewayMetrics()
    with caplog.at_level(logging.DEBUG):
        status, _, body = asyncio.run(ask(RequestBoundary(fails, metrics)))
    assert (status, body["error"]["code"]) == (500, "internal_error")
    assert counted(metrics, 500) == 1
    assert "RuntimeError" in caplog.text
    assert prompt not in caplog.text + str(body)


def test_a_client_that_left_is_counted_as_such() -> None:
    async def gone(scope: Scope, receive: Receive, send: Send) -> None:
        raise ClientGone

    metrics = GatewayMetrics()
    assert asyncio.run(ask(RequestBoundary(gone, metrics)))[0] == 0
    assert counted(metrics, CLIENT_GONE_STATUS) == 1


def test_an_error_within_a_stream_is_counted_by_its_own_status() -> None:
    metrics = GatewayMetrics()

    async def streams(scope: Scope, receive: Receive, send: Send) -> None:
        note_error(scope, metrics, NoTarget("all gone"))
        await ok(scope, receive, send)

    assert asyncio.run(ask(RequestBoundary(streams, metrics)))[0] == 200
    assert (counted(metrics, 503), counted(metrics, 200)) == (1, 0)


def test_made_up_methods_share_one_label() -> None:
    metrics = GatewayMetrics()
    for method in ("BREW", "STEEP"):
        asyncio.run(ask(RequestBoundary(ok, metrics), method=method))
    assert counted(metrics, 200, "other") == 2


def test_keys_are_asked_for_but_not_of_who_watches() -> None:
    keys = ApiKeys(GatewayConfig(api_keys=[SecretStr("right")]))
    app = Authentication(ok, keys, GatewayMetrics(), playground=True)
    assert asyncio.run(ask(app, authorization="Bearer right"))[0] == 200
    wrong, _, body = asyncio.run(ask(app, authorization="Bearer wrong"))
    assert (wrong, body["error"]["message"]) == (401, "Incorrect API key provided.")
    assert asyncio.run(ask(app))[0] == 401
    assert [asyncio.run(ask(app, path))[0] for path in ("/health", "/ready", "/metrics", "/v1/models")] == [
        200, 200, 200, 401,
    ]  # fmt: skip


def test_nothing_new_begins_once_the_process_is_to_end() -> None:
    draining = Event()
    app = Draining(ok, draining, GatewayMetrics())
    assert asyncio.run(ask(app))[0] == 200
    draining.set()
    status, headers, _ = asyncio.run(ask(app))
    assert (status, headers["connection"]) == (503, "close")
    assert [asyncio.run(ask(app, path))[0] for path in ("/health", "/metrics", "/ready")] == [200, 200, 503]
