"""How long tests wait for what comes in the end: on a machine that has far too much else to do, too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 240.0
"""Seconds; only a guard against hangs. pytest's own limit, above it, is for a test that waits several times."""


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until it holds. Fails after PATIENCE seconds."""
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.05)


def tries(make: Callable[[], T], holds: Callable[[T], bool], what: str) -> list[T]:
    """Make one after another until it holds of the last: all of them. Fails after PATIENCE seconds.

    For what depends on who is quicker: drafts that may be late, a fault that may come when all is over.
    """
    made: list[T] = []

    def came() -> bool:
        made.append(make())
        return holds(made[-1])

    eventually(came, what)
    return made


async def until(holds: Callable[[], object], what: str = "what is waited for") -> None:
    """`eventually` in an event loop, for what other tasks and threads bring about and set no event for."""
    give_up = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < give_up, f"not within {PATIENCE:g} s: {what}"
        await asyncio.sleep(0.002)
