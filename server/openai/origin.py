"""What a request's headers say of where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from starlette.requests import Request

from server.http.record import record_of


@dataclass(frozen=True, slots=True)
class Origin:
    """`caller` is a hash of the API key, so that the key itself goes no further; the same for all who send none."""

    traceparent: str | None = None
    caller: str = ""


def origin_of(request: Request) -> Origin:
    """Keys that are not asked for separate too: a client of an open gateway may keep to itself by sending one."""
    _, _, key = request.headers.get("authorization", "").partition(" ")
    caller = sha256(key.strip().encode()).hexdigest() if key.strip() else ""
    record = record_of(request.scope)
    return Origin(record.traceparent if record is not None else None, caller)
