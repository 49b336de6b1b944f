"""CUDA graphs: a fixed sequence of kernels, launched as one. What can't be captured runs as it is."""

from __future__ import annotations

from collections.abc import Callable

import torch

_WARM_UPS = 2


class GraphPool:
    """Captures functions of no arguments that work on tensors which stay where they are.

    All share one pool of memory for what they compute on the way, so that together they need what the largest needs:
    results are to be copied to tensors made outside, and no two may run at a time. A graph keeps nothing alive: whoever
    captures a function has to hold on to the tensors that it reads.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """What does the same as `function`, which runs a few times now. Elsewhere than on CUDA the function itself."""
        if self._pool is None:
            return function
        with torch.cuda.device(self._device):
            return self._captured(function)

    def _captured(self, function: Callable[[], None]) -> Callable[[], None]:
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                function()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            function()
        return graph.replay
