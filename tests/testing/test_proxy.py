"""The delaying proxy of tests and benchmarks: it lengthens the way, not the traffic."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from testing.patience import PATIENCE
from testing.proxy import Proxy

DELAY = 0.15
PIECES = 20


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


class Clock:
    """Stands in for `time`: it stands still until `go_on`, and from then on every sleep is over at once."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        """Counts who asked for the time."""
        self.go_on = threading.Event()
        self.slept: dict[int, float] = {}
        """Seconds by thread, in the order in which they began."""
        self._now = 0.0
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        now = self._now
        self.asked.release()
        return now

    def sleep(self, seconds: float) -> None:
        with self._lock:
            thread = threading.get_ident()
            self.slept[thread] = self.slept.get(thread, 0.0) + seconds
        assert self.go_on.wait(PATIENCE)
        with self._lock:
            self._now += seconds


def test_pieces_are_under_way_together_and_keep_their_order(echo: str) -> None:
    clock = Clock()
    pieces = [b"%05d" % number for number in range(PIECES)]
    with Proxy(echo, DELAY, clock) as proxy, _connect(proxy) as client:
        for number, piece in enumerate(pieces):
            client.sendall(piece)
            # Each is read while the first is still under way, for which its deliverer asked for the time, too.
            for _ in range(1 if number else 2):
                assert clock.asked.acquire(timeout=PATIENCE)
        clock.go_on.set()
        found = b""
        while len(found) < PIECES * 5:
            data = client.recv(4096)
            assert data, f"closed after {len(found)} bytes"
            found += data
        there, *_ = clock.slept.values()  # and here alone: the end of the connection is under way, too
    assert found == b"".join(pieces)
    assert there == DELAY, "one after the other they would be under way for as long each"


def test_what_is_held_comes_in_the_end(echo: str) -> None:
    with Proxy(echo) as proxy, _connect(proxy) as client:
        proxy.hold(1)
        client.sendall(b"first")
        assert client.recv(10) == b"first"
        client.sendall(b"second")
        with _connect(proxy) as other:
            other.sendall(b"other")
            assert not select.select([client, other], [], [], 0.1)[0]
            proxy.release()
            assert (client.recv(10), other.recv(10)) == (b"second", b"other")
