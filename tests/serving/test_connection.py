"""Upgrades are ignored: the request is answered over HTTP/1.1, with its body, by a real uvicorn."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import Response

from protocol.errors import ErrorBody
from serving.connection import HttpConnection
from testing.patience import PATIENCE

H2C = "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
WEBSOCKET = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhl\r\nSec-WebSocket-Version: 13\r\n"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """An app that answers with the method, the query and the body that it was sent."""

    async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        request = Request(scope, receive)
        body = await request.body()
        await Response(f"<{request.method} {request.url.query} ".encode() + body + b">")(scope, receive, send)

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = uvicorn.Server(uvicorn.Config(app, http=HttpConnection, lifespan="off", log_level="error"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(PATIENCE)


def talk(port: int, *chunks: bytes, until: bytes) -> bytes:
    """The response up to `until`; each chunk is its own segment."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for chunk in chunks:
            connection.sendall(chunk)
        while until not in received:
            got = connection.recv(65536)
            assert got, received
            received += got
    return received


def post(headers: str, body: bytes, query: str = "a=1") -> bytes:
    length = f"Content-Length: {len(body)}\r\n"
    return f"POST /x?{query} HTTP/1.1\r\nHost: x\r\n{headers}{length}\r\n".encode() + body


@pytest.mark.parametrize("headers", [H2C, WEBSOCKET])
def test_the_body_of_a_request_to_upgrade_is_read(port: int, headers: str) -> None:
    answer = talk(port, post(headers, b'{"n": 1}'), until=b">")
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b'<POST a=1 {"n": 1}>')


@pytest.mark.parametrize("headers", [H2C, WEBSOCKET])
def test_it_may_come_in_pieces(port: int, headers: str) -> None:
    whole = post(headers, b"0123456789")
    pieces = [whole[i : i + 7] for i in range(0, len(whole), 7)]
    assert talk(port, *pieces, until=b">").endswith(b"<POST a=1 0123456789>")


def test_chunked(port: int) -> None:
    head = f"POST /x?a=1 HTTP/1.1\r\nHost: x\r\n{H2C}Transfer-Encoding: chunked\r\n\r\n".encode()
    assert talk(port, head, b"3\r\nabc\r\n0\r\n\r\n", until=b">").endswith(b"<POST a=1 abc>")


def test_get_to_upgrade(port: int) -> None:
    request = f"GET /x?a=1 HTTP/1.1\r\nHost: x\r\n{WEBSOCKET}\r\n".encode()
    assert talk(port, request, until=b">").startswith(b"HTTP/1.1 200")


def test_requests_one_after_the_other_and_pipelined(port: int) -> None:
    three = post(H2C, b"one", "q=1") + post(WEBSOCKET, b"two", "q=2") + post("", b"three", "q=3")
    answer = talk(port, three, until=b"three>")
    assert [part in answer for part in (b"<POST q=1 one>", b"<POST q=2 two>", b"<POST q=3 three>")] == [True] * 3


def test_what_is_not_http_is_refused_in_json(port: int) -> None:
    answer = talk(port, b"what\r\n\r\n", until=b"}}")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n")
    assert f"content-length: {len(body)}\r\n".encode() in head
    error = json.loads(body)["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "invalid_http")
    assert ErrorBody.model_validate_json(body).error.message == error["message"]


@pytest.mark.parametrize("target", ["example.com:443", "/x"])
def test_connect_ends(port: int, target: str) -> None:
    answer = talk(port, f"CONNECT {target} HTTP/1.1\r\nHost: x\r\n{H2C}\r\n".encode(), until=b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 ")


def test_heads_are_bounded(port: int) -> None:
    fits = f"X-Large: {'x' * 40_000}\r\n"
    twice = post(fits, b"1") + post(fits, b"2")
    assert talk(port, twice, until=b"<POST a=1 2>").count(b"HTTP/1.1 200") == 2
    too_many = "".join(f"X-{number}: {'x' * 1000}\r\n" for number in range(70))
    endless = b"GET /x HTTP/1.1\r\nHost: x\r\nX-Endless: " + b"x" * 33_000
    long_path = b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    for chunks in ([post(too_many, b"")], [endless, b"x" * 33_000], [long_path]):
        answer = talk(port, *chunks, until=b"}}")
        assert answer.startswith(b"HTTP/1.1 431 ")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert ErrorBody.model_validate_json(body).error.code == "headers_too_large"
        assert b"connection: close" in head
