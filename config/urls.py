"""Addresses of workers, checked when they are read rather than when the first request fails."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_HOST = re.compile(r"[\w.-]+|[0-9A-Fa-f:.]+(%[\w.-]+)?")  # a name or an IPv4 address; an IPv6 address


def worker_url(url: str) -> str:
    """The address without slashes at its end. Raises ValueError if no worker could have it."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is not an http:// or https:// address")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"{url!r} has no valid host and port (1 to 65535)") from None
    # urlsplit silently drops line breaks and tabs.
    if port == 0 or not _HOST.fullmatch(parts.hostname or "") or any(letter.isspace() for letter in url):
        raise ValueError(f"{url!r} has no valid host and port (1 to 65535)")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} must not have a query or a fragment")
    return url.rstrip("/")
