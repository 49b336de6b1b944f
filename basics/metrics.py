"""A metric whose value lives elsewhere and is read when Prometheus asks."""

from __future__ import annotations

from collections.abc import Callable

Watched = tuple[str, str, Callable[[], float]]
"""Name (without `tandem_`), help text, and how to read the value of now."""
