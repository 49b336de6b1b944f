"""The delaying proxy of tests and benchmarks: it lengthens the way, not the traffic."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from testing.patience import PATIENCE
from testing.proxy import Proxy

DELAY = 0.15
PIECES = 200


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(client: socket.socket) -> None:
            with suppress(OSError), client:
                while data := client.recv(4096):
                    client.sendall(data)

        def accept() -> None:
            with suppress(OSError):
                while True:  # a stranger may come too, who looks for a server that had this port
                    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def _connect(proxy: Proxy) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", int(proxy.url.rpartition(":")[2])), timeout=PATIENCE)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def test_a_round_trip_takes_twice_the_delay(echo: str) -> None:
    with Proxy(echo, DELAY) as proxy, _connect(proxy) as client:
        began = time.monotonic()
        client.sendall(b"x")
        assert client.recv(10) == b"x"
        assert time.monotonic() - began >= 2 * DELAY


def test_pieces_are_under_way_together_and_keep_their_order(echo: str) -> None:
    sent = b"".join(b"%05d" % number for number in range(PIECES))
    with Proxy(echo, DELAY) as proxy, _connect(proxy) as client:
        began = time.monotonic()
        for start in range(0, len(sent), 5):
            client.sendall(sent[start : start + 5])
            time.sleep(0.001)
        found = b""
        while len(found) < len(sent):
            data = client.recv(4096)
            assert data, f"closed after {len(found)} bytes"
            found += data
        took = time.monotonic() - began
    assert found == sent
    assert took < PIECES * DELAY / 2  # one after the other they would take four times that
