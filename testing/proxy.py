"""A TCP proxy that can delay what it passes on, hold it back, and cut connections in the middle of an answer."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import urlsplit

_CHUNK = 4096
_MOST_UNDER_WAY = 4096
"""Pieces in each direction of a connection; a sender of more has to wait."""

_Pieces = queue.Queue[tuple[float, bytes]]
"""When each is to arrive, on time.monotonic's clock; an empty one is the end."""


class Clock(Protocol):
    """What the module `time` has."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class Proxy:
    """Passes bytes between its own port and `upstream`; after `cut(n)` the next n pieces of answers end midway.
    After `hold(n)` answers get no further than their next n pieces, of 4 KiB at most, until `release()`.

    Each piece arrives `delay` seconds after it was sent, in either direction, so that a round trip takes twice as long.
    Pieces travel at the same time: the delay is that of a distance, not of a narrow line.
    """

    def __init__(self, upstream: str, delay: float = 0.0, clock: Clock = time) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._delay = delay
        self._clock = clock
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0
        self._to_cut = 0
        self._may_pass: int | None = None
        """Pieces of answers before the rest is held; None: all."""
        self._passing = threading.Condition()
        self._open: set[socket.socket] = set()
        _start(self._accept)

    def cut(self, pieces: int) -> None:
        self._to_cut = pieces

    def hold(self, pieces: int) -> None:
        self._let(pieces)

    def release(self) -> None:
        self._let(None)

    def close(self) -> None:
        self.release()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in list(self._open):
            _close(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _let(self, pieces: int | None) -> None:
        with self._passing:
            self._may_pass = pieces
            self._passing.notify_all()

    def _pass(self) -> None:
        """Wait until one more piece of an answer may pass."""
        with self._passing:
            self._passing.wait_for(lambda: self._may_pass != 0)
            if self._may_pass is not None:
                self._may_pass -= 1

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._upstream, timeout=5)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                self._open |= {client, server}
                for source, sink, is_answer in ((client, server, False), (server, client, True)):
                    sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    under_way: _Pieces = queue.Queue(_MOST_UNDER_WAY)
                    _start(self._receive, source, under_way)
                    _start(self._deliver, source, sink, under_way, is_answer)

    def _receive(self, source: socket.socket, under_way: _Pieces) -> None:
        data = b"begin"
        while data:
            try:
                data = source.recv(_CHUNK)
            except OSError:
                data = b""
            under_way.put((self._clock.monotonic() + self._delay, data))

    def _deliver(self, source: socket.socket, sink: socket.socket, under_way: _Pieces, is_answer: bool) -> None:
        with suppress(OSError):
            while True:
                arrival, data = under_way.get()
                self._clock.sleep(max(0.0, arrival - self._clock.monotonic()))
                if not data:
                    break
                if is_answer:
                    self._pass()
                if is_answer and self._to_cut > 0:
                    self._to_cut -= 1
                    self.cuts += 1
                    sink.sendall(data[: len(data) // 2])
                    break
                sink.sendall(data)
        for end in (source, sink):
            _close(end)
            self._open.discard(end)


def _start(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
