"""Where services listen, and how they are reached from this machine."""

from __future__ import annotations

import ipaddress
import socket


def service_url(host: str, port: int) -> str:
    """The host at which a service that listens on `host` is reached from this machine."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. A name other than localhost counts as public."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def listening_fault(host: str, port: int) -> str | None:
    """Why nothing can listen there (the system's words, such as "Address already in use"); None: it can."""
    fault = None
    for family in (socket.AF_INET6,) if ":" in host else (socket.AF_INET, socket.AF_INET6):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                return None
            except socket.gaierror as error:  # the name may have addresses of the other family
                fault = error.strerror
            except OSError as error:
                return error.strerror
    return fault
