"""Curves of what passes take by their rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def rising(seconds: Sequence[float]) -> list[float]:
    """Without what others on the machine added: a pass takes no longer than one of more rows."""
    return list(accumulate(reversed(seconds), min))[::-1]
