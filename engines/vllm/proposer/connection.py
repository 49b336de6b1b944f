"""One kept-alive HTTP connection on which every exchange ends by a deadline, whatever the other side does."""

from __future__ import annotations

import io
import select
import socket
import ssl
import time
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from pydantic_core import from_json, to_json

MAX_ANSWER_BYTES = 4 * 2**20


class ExchangeFailed(Exception):
    """No usable answer; the connection is closed."""


class NoAnswerInTime(ExchangeFailed):
    """The deadline passed."""


class _Bounded(io.RawIOBase):
    """A socket's reading side up to one moment: dripping bytes does not extend it."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock = sock
        self._until = until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_left(self._until))
        return self._sock.recv_into(buffer)


class _Socket:
    """What http.client needs of a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.until = 0.0

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(_left(self.until))
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Bounded(self._sock, self.until), 65_536)

    def close(self) -> None:
        self._sock.close()


class DraftConnection:
    """To one server. Not for two threads at once."""

    def __init__(self, url: str, token: str | None, ca: str | None, seconds: float) -> None:
        """Connects. Raises ExchangeFailed, within `seconds` once the name is resolved."""
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            sock = socket.create_connection((parts.hostname or "", port), seconds)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if parts.scheme == "https":
                sock = ssl.create_default_context(cafile=ca).wrap_socket(sock, server_hostname=parts.hostname)
        except (OSError, ValueError) as error:
            raise ExchangeFailed(f"{url} could not be reached: {error}") from None
        self._sock = sock
        self._socket = _Socket(sock)
        self._http = HTTPConnection(parts.netloc)
        self._http.sock = self._socket
        self._http.auto_open = 0
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def exchange(self, method: str, path: str, message: object, seconds: float) -> Any:
        """The JSON of a 2xx answer; None for an empty one. Raises ExchangeFailed."""
        self._socket.until = time.monotonic() + seconds
        try:
            self._http.request(method, path, to_json(message) if message is not None else None, self._headers)
            response = self._http.getresponse()
            body = response.read(MAX_ANSWER_BYTES + 1)
            if len(body) > MAX_ANSWER_BYTES or not response.isclosed():
                raise ExchangeFailed(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
            if not 200 <= response.status < 300:
                raise ExchangeFailed(f"HTTP {response.status}: {body[:200].decode(errors='replace')}")
            return from_json(body) if body else None
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise NoAnswerInTime(f"no answer within {1e3 * seconds:.0f} ms") from None
            raise ExchangeFailed(f"{type(error).__name__}: {error}") from None
        except ExchangeFailed:
            self.close()
            raise

    @property
    def stale(self) -> bool:
        """Between exchanges: whether the other side has closed it."""
        readable = select.poll()  # select.select() takes no descriptor from 1,024 on, which a server soon has
        readable.register(self._sock, select.POLLIN)
        return bool(readable.poll(0))

    def close(self) -> None:
        self._http.close()


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0.0:
        raise TimeoutError
    return left
