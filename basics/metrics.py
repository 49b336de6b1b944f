"""What the metrics of all services have in common."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

Watched = tuple[str, str, Callable[[], float]]
"""A metric whose value lives elsewhere and is read when Prometheus asks: its name (without the service's prefix), help
text, and how to read its current value."""


def tandem_version() -> str:
    """The installed distribution's version; "unknown" if the packages run from a folder that is not installed."""
    try:
        return version("tandem")
    except PackageNotFoundError:
        return "unknown"
