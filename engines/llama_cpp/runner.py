"""llama.cpp behind the loop: slots are sequence ids, a tree is one batch of several of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.llama_cpp.batch import BatchArrays, FlatBatch, floats_at
from engines.llama_cpp.cells import Cells
from engines.llama_cpp.context import Context
from engines.runtime.rows import Row, check_path, check_rows, paths

TILE_ROWS = 4
"""Rows that products over repacked weights take as one; a row's bits are the same in any tile of any pass."""
FEW_ROWS = TILE_ROWS - 1
"""As many are taken one by one."""


class Runner:
    """A ModelRunner (engines/runtime/runner.py) over one llama.cpp context, whose cells must hold all slots and a pass.

    `ordered`: keep every sequence's cells in order, for the same bits whatever happened before
    (engines.llama_cpp.cells). `reads_apart`: compute prompts in whole tiles and all else in passes of a few rows, for
    the same bits where products are made over repacked weights (engines.llama_cpp.exact).
    """

    def __init__(
        self,
        context: Context,
        num_slots: int,
        slot_length: int,
        *,
        ordered: bool = True,
        reads_apart: bool = False,
    ) -> None:
        if num_slots < 1 or slot_length < 1:
            raise ValueError("num_slots and slot_length must be at least 1")
        self.num_slots = num_slots
        self.slot_length = slot_length
        self.context = context
        self.cells = Cells(context, num_slots, ordered=ordered)
        self.reads_apart = reads_apart
        self._api: Any = context.api
        self._arrays = BatchArrays(context.api, context.pass_tokens)
        self._trees: dict[int, tuple[Row, dict[int, int]]] = {}

    @property
    def vocab_size(self) -> int:
        return self.context.model.num_ids

    def forward(self, rows: Sequence[Row]) -> list[Tensor]:
        """One pass (engines.runtime.runner.ModelRunner.forward). Logits are views of llama.cpp's own buffer.

        Raises:
            ValueError: if a row does not fit, or begins behind what its slot holds.
            RuntimeError: if llama.cpp can't compute it.
        """
        check_rows(rows, self.num_slots, self.slot_length, self.vocab_size)
        self._drop_trees()
        for row in rows:
            if row.token_ids and row.start > self.cells.lengths[row.slot]:
                held = self.cells.lengths[row.slot]
                raise ValueError(f"slot {row.slot} holds {held} tokens: nothing can follow at {row.start}")
            self.cells.cut(row.slot, row.start)
        for row in rows:
            self.cells.hold(row.slot)
        self.cells.make_room(sum(len(row.token_ids) for row in rows) + TILE_ROWS * self.reads_apart)
        try:
            logits = self._read_apart(rows) if self.reads_apart else self._together(rows)
        except Exception:
            self._recover(rows)
            raise
        for row in rows:
            if row.parents is None and row.token_ids:
                self.cells.lengths[row.slot] = row.start + len(row.token_ids)
        return logits

    def commit(self, slot: int, start: int, path: Sequence[int]) -> None:
        """Keep part of the latest pass's tree (engines.runtime.runner.ModelRunner.commit). Raises ValueError."""
        if not path:
            return
        if slot not in self._trees:
            raise ValueError(f"the latest pass fed no tree to slot {slot}")
        row, branch_of = self._trees[slot]
        check_path(row, start, path)
        self.cells.share(branch_of[path[-1]], slot, start, start + len(path))
        self.cells.lengths[slot] = start + len(path)

    def reusable(self, slot: int, length: int) -> int:
        """All of it: every key is kept."""
        return length

    def copy(self, source: int, target: int, length: int) -> None:
        """Make the first `length` positions of slot `target` those of `source`: they share cells."""
        if source == target:
            self.cells.cut(target, length)
            return
        if length > self.cells.lengths[source]:
            raise ValueError(f"slot {source} holds {self.cells.lengths[source]} tokens, not {length}")
        if source in self.cells.parked:
            self._drop_trees()  # all cells may be written anew
        self.cells.cut(target, 0)
        for slot in (source, target):
            self.cells.hold(slot)
        self.cells.share(source, target, 0, length)
        self.cells.lengths[target] = length

    def _together(self, rows: Sequence[Row]) -> list[Tensor]:
        batch = FlatBatch()
        for row in rows:
            batch.add(row, self._sequences(row))
        counts = [len(row.token_ids) - row.logits_from for row in rows]
        return _split(torch.from_numpy(self._decode(batch, self.context.pass_tokens)), counts)

    def _read_apart(self, rows: Sequence[Row]) -> list[Tensor]:
        """Prompts in whole tiles, then all else in passes too small for one."""
        prompts, others = FlatBatch(), FlatBatch()
        for row in rows:
            sequences = self._sequences(row)
            prompts.add(row, sequences, last=row.prompt)
            others.add(row, sequences, first=row.prompt)
        counts = [(max(0, row.prompt - row.logits_from), len(row.token_ids) - row.logits_from) for row in rows]
        read = torch.empty(0, self.vocab_size)
        if len(prompts):
            prompts.fill_up(TILE_ROWS, self.cells.spare)
            read = torch.from_numpy(self._decode(prompts, self.context.pass_tokens // TILE_ROWS * TILE_ROWS))
            self._leave(self.cells.spare, 0)
            if len(read):
                read = read.clone()  # the next pass writes where it is
        drawn = torch.from_numpy(self._decode(others, FEW_ROWS))
        of_prompts = _split(read, [first for first, _ in counts])
        of_others = _split(drawn, [both - first for first, both in counts])
        return [torch.cat([a, b]) if len(a) else b for a, b in zip(of_prompts, of_others, strict=True)]

    def _sequences(self, row: Row) -> list[list[int]]:
        """The sequences of each of a row's tokens. A tree has one for every leaf, which begins with the slot's own."""
        if row.parents is None:
            return [[row.slot]] * len(row.token_ids)
        taken = {sequence for _, branch_of in self._trees.values() for sequence in branch_of.values()}
        free = (sequence for sequence in self.cells.branches() if sequence not in taken)
        sequences: list[list[int]] = [[] for _ in row.token_ids]
        branch_of: dict[int, int] = {}
        self._trees[row.slot] = (row, branch_of)
        for path in paths(row.parents):
            branch = next(free, None)
            if branch is None:
                raise ValueError("a pass has more branches than llama.cpp has sequences for")
            for node in path:
                sequences[node].append(branch)
                branch_of[node] = branch
            self.cells.share(row.slot, branch, 0, row.start)
        return sequences

    def _decode(self, batch: FlatBatch, most: int) -> NDArray[np.float32]:
        """The logits wanted, computed in passes of at most so many tokens."""
        found: list[NDArray[np.float32]] = []
        for piece, wanted in batch.pieces(self._arrays, most):
            self.cells.fed(piece.n_tokens)
            code = self._api.llama_decode(self.context.pointer, piece)
            if code != 0:
                reason = self.context.model.library.log.reason()
                raise RuntimeError(f"llama_decode returned {code} for {piece.n_tokens} tokens: {reason}")
            if not wanted:
                continue
            view = floats_at(self._api.llama_get_logits(self.context.pointer), wanted, self.vocab_size)
            found.append(view if len(batch) <= most else view.copy())
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.empty((0, self.vocab_size), dtype=np.float32)

    def _drop_trees(self) -> None:
        """Free the branches of the latest pass, except for what was committed."""
        for row, branch_of in self._trees.values():
            for branch in set(branch_of.values()):
                self._leave(branch, row.start)
        self._trees = {}

    def _leave(self, branch: int, start: int) -> None:
        self.cells.give_up(branch, start)
        self._api.llama_memory_seq_rm(self.context.memory, branch, -1, -1)

    def _recover(self, rows: Sequence[Row]) -> None:
        """After a pass that failed half-way: slots hold what they held before it."""
        self._drop_trees()
        self._leave(self.cells.spare, 0)
        for row in rows:
            self.cells.give_up(row.slot, row.start)


def _split(logits: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """torch.split, which takes longer than all else here for the one row of plain decoding."""
    return [logits] if len(counts) == 1 else list(torch.split(logits, list(counts)))
