"""Runs a Supervisor over stand-ins: `supervise.py READY_TIMEOUT GRACE label:port:mode …`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rich.console import Console

from tandem.supervisor import ChildService, Supervisor

STAND_IN = Path(__file__).with_name("stand_in.py")


def main() -> None:
    services = []
    for spec in sys.argv[3:]:
        label, port, mode = spec.split(":")
        command = (sys.executable, str(STAND_IN), port, mode)
        services.append(ChildService(label, "127.0.0.1", int(port), f"--{label}-port", command))
    supervisor = Supervisor(
        services,
        Console(stderr=True),
        drain_seconds=0.5,
        grace_seconds=float(sys.argv[2]),
        cores=int(os.environ.get("CORES", "3")),
    )
    sys.exit(supervisor.run(float(sys.argv[1]), lambda: print("announced", flush=True)))


main()
