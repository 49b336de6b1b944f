"""Chains of drawn tokens on a CPU: each token's pass and draw follow the last at once, without the loop in between.

What engines/torch/chains.py is on a GPU, for drafts whose passes are written out (engines/torch/short_passes.py): there
the loop and the draw over the whole vocabulary take as long as the pass. A head cut to some ids is drawn from over
these alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engines.runtime.rows import Row
from engines.runtime.runner import ChainRow
from engines.sampling.draw import draw
from engines.sampling.edits import is_edited
from engines.sampling.process import UnusableLogits, process
from engines.sampling.rows import SamplingRow
from engines.torch.draft_weights import UNSAID
from engines.torch.int8_linear import MOST_ROWS
from engines.torch.runner import Runner
from engines.torch.short_passes import ShortPasses


@dataclass(slots=True)
class _Growing:
    """A chain: what it feeds next, how its next token is drawn, and what has been drawn."""

    row: Row
    sampling: SamplingRow
    left: int
    tokens: list[int]
    kept: list[Tensor | int] | None

    def add(self, token: int) -> None:
        self.tokens.append(token)
        self.left -= 1
        self.row = Row(self.row.slot, self.row.start + len(self.row.token_ids), [token])
        self.sampling = replace(self.sampling, position=self.sampling.position + 1)


class ShortChains:
    """Chains (engines/runtime/runner.py) over a runner's short passes; for use by whoever uses the runner."""

    apart = 0
    """On a CPU a row more costs too much."""
    longest_apart = 0

    def __init__(self, runner: Runner, passes: ShortPasses) -> None:
        self._runner = runner
        self._passes = passes

    def takes(self, row: Row, sampling: SamplingRow) -> bool:
        """Whether a chain can be drawn after `row`; a grammar, q or a runner-up are not to be had."""
        return row.parents is None and 1 <= len(row.token_ids) <= MOST_ROWS and not is_edited(sampling)

    def read(self, rows: Sequence[Row]) -> None:
        self._runner.forward(rows)

    @torch.inference_mode()
    def run(self, chains: Sequence[ChainRow]) -> list[list[int]]:
        """Raises ValueError if a row does not fit (engines.runtime.rows.check_rows)."""
        self._runner.check([chain.row for chain in chains])
        growing = []
        for chain in chains:
            room = self._runner.slot_length - chain.row.start - len(chain.row.token_ids) + 1
            growing.append(_Growing(chain.row, chain.sampling, min(chain.count, room), [], chain.kept))
        for group in _groups(growing):
            while (group := [one for one in group if one.left > 0]) and self._grow(group):
                pass
        return [one.tokens for one in growing]

    def _grow(self, group: Sequence[_Growing]) -> bool:
        """Draw a token for each; False if that can't be done here."""
        logits = self._passes.logits([one.row for one in group])
        rows = [one.sampling for one in group]
        try:
            tokens = draw(process(logits, rows), rows, noise_ids=self._passes.ids)
        except UnusableLogits:
            return False
        for one, token, own in zip(group, self._ids(tokens), logits, strict=True):
            one.add(token)
            if one.kept is not None:
                one.kept.append(self._whole(own))
        return True

    def _whole(self, logits: Tensor) -> Tensor:
        """A row's logits as those of the whole vocabulary."""
        ids = self._passes.ids
        return logits if ids is None else logits.new_full((self._runner.vocab_size,), UNSAID).index_copy(0, ids, logits)

    def _ids(self, drawn: Tensor) -> list[int]:
        ids = self._passes.ids
        found: list[int] = (drawn if ids is None else ids[drawn]).tolist()
        return found


def _groups(growing: Sequence[_Growing]) -> list[list[_Growing]]:
    """Chains that grow together: as many tokens as a pass multiplies in int8."""
    groups: list[list[_Growing]] = []
    size = MOST_ROWS
    for one in growing:
        count = len(one.row.token_ids)
        if size + count > MOST_ROWS:
            groups.append([])
            size = 0
        groups[-1].append(one)
        size += count
    return groups
