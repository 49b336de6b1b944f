"""What the proposer, in vLLM's own process, proposed for each request: sent over a datagram socket of this machine."""

from __future__ import annotations

import itertools
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic_core import from_json

_MAX_DATAGRAM = 2**20
Proposals = dict[int, list[int]]
"""By the sequence's length then: the tokens that were proposed to follow it."""


class Reports:
    """Proposals of the requests that are being followed. Single-threaded."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tandem-"))
        self.path = str(self._folder / "reports")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(self.path)
        self._keys = itertools.count()
        self._followed: dict[str, Proposals] = {}

    @contextmanager
    def follow(self) -> Iterator[tuple[str, Proposals]]:
        """A key for a request to carry, and what is proposed for it, which `read` fills in."""
        key = str(next(self._keys))
        proposals = self._followed[key] = {}
        try:
            yield key, proposals
        finally:
            del self._followed[key]

    def read(self) -> None:
        """Take in what has been sent. Does not wait: a step's proposals come before its tokens."""
        while True:
            try:
                received = from_json(self._socket.recv(_MAX_DATAGRAM))
            except BlockingIOError:
                return
            for key, length, tokens in received:
                if key in self._followed:
                    self._followed[key][length] = tokens

    def close(self) -> None:
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)
