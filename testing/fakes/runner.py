"""A model that is a hash: logits are a function of the ids before them, and wrong memory cannot go unnoticed."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from engines.runtime.rows import Row

VOCABULARY = 32


def hash_logits(ids: Sequence[int], salt: bytes = b"") -> Tensor:
    """Float32 [32] in ±4, a function of every id of the sequence."""
    digest = blake2b(array("I", ids).tobytes(), digest_size=64, key=salt).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.int16).float() / 8192


class FakeRunner:
    """Keeps ids in place of their keys and values. `gate` may hold up or fail a pass."""

    def __init__(
        self,
        num_slots: int = 4,
        slot_length: int = 256,
        logits: Callable[[Sequence[int]], Tensor] = hash_logits,
    ) -> None:
        self.num_slots = num_slots
        self.slot_length = slot_length
        self.vocab_size = VOCABULARY
        self.logits = logits
        self.held: list[list[int]] = [[] for _ in range(num_slots)]
        self.passes: list[list[Row]] = []
        self.copies: list[tuple[int, int, int]] = []
        self.gate: Callable[[list[Row]], None] = lambda rows: None
        self._trees: dict[int, Row] = {}
        self._thread: int | None = None

    def forward(self, rows: Sequence[Row]) -> list[Tensor]:
        assert self._thread in (None, threading.get_ident()), "the model is used from two threads"
        self._thread = threading.get_ident()
        assert len({row.slot for row in rows}) == len(rows), "a slot is in a pass twice"
        self.passes.append(list(rows))
        self.gate(list(rows))
        self._trees = {}
        return [self._row(row) for row in rows]

    def _row(self, row: Row) -> Tensor:
        held = self.held[row.slot]
        assert row.token_ids, "an empty row"
        assert row.start <= len(held), "attends to memory that was never written"
        assert row.start + len(row.token_ids) <= self.slot_length or row.parents is not None
        context = held[: row.start]
        if row.parents is None:
            prefixes = [context + list(row.token_ids[: i + 1]) for i in range(len(row.token_ids))]
            self.held[row.slot] = context + list(row.token_ids)
        else:
            self._trees[row.slot] = row
            self.held[row.slot] = context  # a tree pass uses what follows `start` as scratch
            paths: list[list[int]] = []
            for token_id, parent in zip(row.token_ids, row.parents, strict=True):
                paths.append([*(paths[parent] if parent >= 0 else []), token_id])
            assert max(len(path) for path in paths) + row.start <= self.slot_length
            prefixes = [context + path for path in paths]
        wanted = [self.logits(prefix) for prefix in prefixes[row.logits_from :]]
        return torch.stack(wanted) if wanted else torch.empty(0, VOCABULARY)

    def commit(self, slot: int, start: int, path: Sequence[int]) -> None:
        row = self._trees[slot]
        assert row.parents is not None
        assert start == row.start
        assert [row.parents[node] for node in path] == [-1, *path[:-1]], "not a path from the root"
        self.held[slot] = self.held[slot][:start] + [row.token_ids[node] for node in path]

    def reusable(self, slot: int, length: int) -> int:
        return length

    def copy(self, source: int, target: int, length: int) -> None:
        assert length <= len(self.held[source])
        self.copies.append((source, target, length))
        self.held[target] = self.held[source][:length]
