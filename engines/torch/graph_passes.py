"""Passes of a few tokens as CUDA graphs: on a GPU a verification's pass is launches rather than work.

A 1.5B model's pass over one token or seventy is some thousand launches, 20 to 40 ms of Python, for about 4 ms of work.
Here it is one: the same kernels over static buffers (its attention: engines/torch/slot_attention.py), captured once for
each of a few numbers of tokens. Everything but the capture runs on CPU as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engines.runtime.rows import Row, flattened
from engines.torch.graphs import GraphPool
from engines.torch.slot_attention import StaticPass

if TYPE_CHECKING:
    from engines.torch.runner import Runner

logger = logging.getLogger(__name__)

SIZES = (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Tokens of a pass; one that has fewer repeats its last."""
MOST_KEYS = 2**20
"""Keys that a pass may read in a layer. Each token reads its own, so that many of one long sequence are better off in
an ordinary pass, where they share them."""
_CHECKED = 23
"""Tokens that both kinds of passes read before graphs are used: of two sizes, and none of them full."""
_ALIKE = 0.99
"""Cosine of what both say of a token: they differ by rounding alone."""


class GraphPasses:
    """Ordinary passes with a runner's model and key-value memory; for use by the runner, when nothing else uses it.

    Made once, which on CUDA takes seconds and memory for 512 tokens' logits. Overwrites slot 0. Weights and memory must
    stay where they are from then on.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        most = min(SIZES[-1], runner.num_slots * runner.slot_length)
        sizes = [size for size in SIZES if size <= most] or [SIZES[0]]
        device = runner.device
        # Graphs read and write what is made here, and keep nothing alive.
        self._inputs = torch.zeros(3, sizes[-1], dtype=torch.int64, device=device)
        self._every = torch.arange(sizes[-1], device=device)
        self._logits = torch.zeros(sizes[-1], runner.vocab_size, dtype=runner.dtype, device=device)
        pool = GraphPool(device)
        with torch.no_grad():
            # The largest first: the others then fit into its memory.
            self._passes = {size: pool.capture(self._pass(size)) for size in reversed(sizes)}
        self._sizes = sizes

    def takes(self, rows: Sequence[Row]) -> bool:
        """Whether a pass over these rows is captured, and costs no more than an ordinary one."""
        count = sum(len(row.token_ids) for row in rows)
        keys = sum(len(row.token_ids) * (row.start + len(row.token_ids)) for row in rows)
        return 0 < count <= self._sizes[-1] and keys <= MOST_KEYS and all(row.parents is None for row in rows)

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row]) -> list[Tensor]:
        """Logits as of Runner.forward, copies. Waits for the device, so that what a pass takes is seen here."""
        columns = flattened(rows)
        count = len(columns[0])
        size = next(size for size in self._sizes if size >= count)
        self._inputs[:, :size].copy_(torch.tensor([column + column[-1:] * (size - count) for column in columns]))
        self._passes[size]()
        found = []
        first = 0
        for row in rows:
            end = first + len(row.token_ids)
            found.append(self._logits[first + row.logits_from : end].to(torch.float32, copy=True))
            first = end
        if self._inputs.is_cuda:
            torch.cuda.current_stream(self._inputs.device).synchronize()
        return found

    def _pass(self, size: int) -> Callable[[], None]:
        runner, cache = self._runner, self._runner.cache
        tokens, positions, slots = self._inputs[:, :size].unbind()
        logits, every = self._logits[:size], self._every[:size]
        attention = StaticPass(cache.keys, cache.values, slots, positions, cache.slot_length)

        def run() -> None:
            logits.copy_(runner.logits(tokens[None], positions[None], every, attention))

        return run


def capture_passes(runner: Runner, model_id: str) -> GraphPasses | None:
    """The runner's passes of a few tokens; None where they can't be captured, or don't compute what its own do."""
    try:
        passes = GraphPasses(runner)
        alike = _alike(runner, passes)
    except Exception as error:  # noqa: BLE001 - whatever can't be captured: each kernel is then launched by itself
        logger.warning("%s: passes of a few tokens can't be captured: %s", model_id, error)
        return None
    if not alike:
        logger.warning("%s: captured passes of a few tokens differ from its own, and are not used", model_id)
        return None
    return passes


def _alike(runner: Runner, passes: GraphPasses) -> bool:
    """Whether the passes say of a text, read in two pieces, what an ordinary one says of all of it."""
    count = min(_CHECKED, runner.slot_length)
    ids = [7 * place % runner.vocab_size for place in range(1, count + 1)]
    own = torch.cat(runner.forward([Row(0, 0, ids)]))
    first = count // 4
    captured = torch.cat(passes.forward([Row(0, 0, ids[:first])]) + passes.forward([Row(0, first, ids[first:])]))
    return bool((torch.cosine_similarity(own, captured, dim=-1) > _ALIKE).all())
