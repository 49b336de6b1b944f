"""API keys: from the settings and from a file that may change while the gateway runs."""

from __future__ import annotations

import hmac
import logging
import time
from hashlib import sha256
from pathlib import Path

from config.gateway import GatewayConfig

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


class ApiKeys:
    """Who may call. Without a key in the settings and without a key file, everybody."""

    def __init__(self, config: GatewayConfig) -> None:
        """Raises OSError or ValueError if the key file cannot be read at start."""
        self._fixed = [_digest(key.get_secret_value()) for key in config.api_keys]
        self._path = config.api_key_file
        self._from_file: list[bytes] = []
        self._signature: tuple[int, int, int] | None = None
        self._looked = time.monotonic()
        if self._path is not None:
            self._read(self._path)

    @property
    def required(self) -> bool:
        return bool(self._fixed) or self._path is not None

    def allow(self, authorization: str | None) -> bool:
        """Whether the value of an Authorization header holds a known key. Every key is compared, in constant time."""
        if not self.required:
            return True
        self._look()
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip())
        known = [hmac.compare_digest(given, digest) for digest in (*self._fixed, *self._from_file)]
        return any(known) and scheme.lower() == "bearer"

    def _look(self) -> None:
        """Reads a changed file, at most once a second; one that can't be read changes nothing."""
        now = time.monotonic()
        if self._path is None or now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        try:
            self._read(self._path)
        except (OSError, ValueError) as error:
            logger.warning("the API key file cannot be read, its last keys stay: %s", error)

    def _read(self, path: Path) -> None:
        status = path.stat()
        signature = (status.st_mtime_ns, status.st_size, status.st_ino)
        if signature == self._signature:
            return
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        self._from_file = [_digest(line) for line in lines if line and not line.startswith("#")]
        self._signature = signature
        logger.info("read %d API keys from %s", len(self._from_file), path)
