"""Process environment of the torch engine. Call `prepare_environment` before anything imports torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
_SPINS = 300
"""Some microseconds, as long as waking another thread takes. With many more, passes beside busy processes take several
times as long."""


def prepare_environment(threads: int | None = None, batch_invariant: bool = False, spins: int = _SPINS) -> None:
    """Set what OpenMP and MKL read once, when torch loads. Variables that are set already stay as they are.

    Waiting is all but passive: spinning threads of several busy processes on few cores slow each other down several
    times. `spins` are the turns that a thread of GNU OpenMP's spins at a barrier before it sleeps.
    `batch_invariant` asks MKL for matrix products whose bits do not depend on the number of rows (Intel's
    "conditional numerical reproducibility", strict mode).

    Raises:
        RuntimeError: if torch is loaded already, so that nothing set here would count.
        ValueError: for less than one thread.
    """
    if "torch" in sys.modules:
        raise RuntimeError("prepare_environment must run before torch is imported")
    if threads is not None:
        if threads < 1:
            raise ValueError("threads must be at least 1")
        os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", str(spins))
    if batch_invariant:
        os.environ.setdefault("MKL_CBWR", "AVX512,STRICT" if has_avx512() else "AVX2,STRICT")


def has_avx512() -> bool:
    """Whether this machine's CPU has the AVX-512 foundation instructions (False if that cannot be read)."""
    try:
        cpu = CPUINFO.read_text()
    except OSError:
        return False
    return any("avx512f" in line.split() for line in cpu.splitlines() if line.startswith("flags"))
