"""The id of the HTTP request that a task works for: sent to the workers and part of every log line."""

from __future__ import annotations

import re
from contextvars import ContextVar

HEADER = "x-request-id"
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""Empty outside of requests. Tasks that a request starts have it too."""

_VALID = re.compile(r"[A-Za-z0-9_.:/+=-]{1,128}")


def valid_id(given: str) -> str:
    """`given`, or "" if it is not fit for logs and headers."""
    return given if _VALID.fullmatch(given) else ""
