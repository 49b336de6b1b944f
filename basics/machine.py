"""Memory and cores that this process may use, of the machine or of its container."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def free_host_bytes() -> int:
    """Bytes that can still be allocated, a container's limit included."""
    import psutil  # which workers have: a gateway that is installed alone asks for cores only

    free = int(psutil.virtual_memory().available)
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, int(limit) - used)


def available_cores(cgroup: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores within the process's affinity and its container's CPU quota (cgroup v2), at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = cgroup.read_text().split()[:2]
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no cgroup v2 here, so no quota
    return cores


def gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
