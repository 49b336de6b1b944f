"""Walking over a whole vocabulary in pieces that stay in a CPU's cache: float64 work there is bound by memory."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

_CPU_ELEMENTS = 1 << 15


def tiles(x: Tensor) -> Iterator[slice]:
    """Slices of columns that cover [r, V] in order; on other devices a single one, since each pass costs a launch."""
    rows, width = x.shape
    step = max(_CPU_ELEMENTS // max(rows, 1), 1024) if x.device.type == "cpu" else max(width, 1)
    for start in range(0, width, step):
        yield slice(start, min(start + step, width))
