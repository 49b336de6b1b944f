"""How much memory this machine, or the container that this process is in, still has."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def free_host_bytes() -> int:
    """Bytes that can still be allocated, a container's limit included."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, int(limit) - used)


def gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
