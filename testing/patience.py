"""How long tests wait for what comes in the end: on a machine that has far too much else to do, too."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 240.0
"""Seconds; only a guard against hangs. pytest's own limit, above it, is for a test that waits several times."""


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until it holds. Fails after PATIENCE seconds."""
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.05)
