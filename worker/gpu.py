"""What NVIDIA's driver reports about the GPUs that this process may use."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gpu:
    """`name`: the driver's index. `utilization` is 0 to 1, memory is bytes; both count what other processes use too."""

    name: str
    utilization: float
    memory_used: float
    memory_total: float


def visible_gpus() -> list[Gpu]:
    """Their current state; empty without a driver. Takes about a millisecond for each."""
    nvml = _nvml()
    if nvml is None:
        return []
    try:
        return [_read(nvml, handle) for handle in _handles(nvml)]
    except nvml.NVMLError as error:
        logger.debug("the GPU driver does not answer: %s", error)
        return []


@cache
def _nvml() -> Any:
    """The library, ready to be asked, or None."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.warning("no GPU metrics: %s", error)
        return None
    return pynvml


def _handles(nvml: Any) -> list[Any]:
    """Those that CUDA_VISIBLE_DEVICES names, by index or UUID; all if it is not set."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    names = [name.strip() for name in chosen.split(",") if name.strip() and name.strip() != "-1"]
    return [
        nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)
        for name in names
    ]


def _read(nvml: Any, handle: Any) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        name=str(nvml.nvmlDeviceGetIndex(handle)),
        utilization=nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        memory_used=float(memory.used),
        memory_total=float(memory.total),
    )
