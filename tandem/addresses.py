"""Where services listen, and how they are reached from this machine."""

from __future__ import annotations

import ipaddress


def service_url(host: str, port: int) -> str:
    """Where a service that listens on `host` is reached from this machine."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. A name other than localhost counts as public."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
