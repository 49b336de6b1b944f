"""A Tandem of the benchmark's own: three processes on free ports, stopped with it whatever happens."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from tandem.addresses import service_url
from tandem.bench.errors import BenchError
from tandem.supervisor import StartFailure, Supervisor
from tandem.up import services
from tandem.up_flags import settings_for_up

DRAIN_SECONDS = 0.5


@contextmanager
def running_tandem(
    given: Mapping[str, Any], config: Path | None, ready_seconds: float, console: Console
) -> Iterator[tuple[str, str | None]]:
    """Its address and the key it asks for. `given`: flags of `tandem up` by parameter name. Raises BenchError."""
    ports = dict(zip(("port", "draft_port", "target_port"), free_ports(3), strict=True))
    settings = settings_for_up({**given, **ports, "host": "127.0.0.1", "log_level": "warning"}, config)
    supervisor = Supervisor(services(settings, config), console, drain_seconds=DRAIN_SECONDS)
    key = next((key.get_secret_value() for key in settings.serve.api_keys), None)
    try:
        with supervisor.running(ready_seconds):
            yield service_url(settings.serve.host, settings.serve.port), key
    except (StartFailure, OSError) as error:
        raise BenchError(str(error)) from None


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
