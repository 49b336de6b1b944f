"""Rotary frequencies that change for a whole sequence once it is longer than the model was first trained on (longrope).

arXiv:2402.13753, as transformers computes it: the frequencies of a pass follow from its last position. So a token at
position p, and all the keys that it sees, are computed with the short ones if p is below the first length and with the
long ones if not. A pass is here made of two, one for the tokens on either side, and a slot whose keys are of the other
kind is read again first. That happens once in a long sequence, and again where drafts across the border are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from engines.runtime.rows import Row, depths, paths

_CHUNK = 256
"""Tokens that are read again in one pass."""

Forward = Callable[[Sequence[Row], int | None], list[Tensor]]
"""One pass over rows, in which a token without meaning has the given position, if any: its frequencies follow."""


@dataclass(slots=True)
class _Held:
    """The tokens whose keys a slot holds, and of which kind they are; `long` None: of both, as reading them failed."""

    ids: list[int] = field(default_factory=list)
    long: bool | None = False


class LongRope:
    """Passes for a model whose frequencies change behind `first_length` tokens."""

    def __init__(self, forward: Forward, first_length: int, num_slots: int) -> None:
        self._forward = forward
        self._first = first_length
        self._held = [_Held() for _ in range(num_slots)]
        self._apart: dict[int, Row] = {}

    def forward(self, rows: Sequence[Row]) -> list[Tensor]:
        """Logits as of Runner.forward. Raises ValueError if a row begins behind what its slot holds."""
        for index, row in enumerate(rows):
            if row.start > len(self._held[row.slot].ids):
                raise ValueError(f"rows[{index}]: slot {row.slot} holds {len(self._held[row.slot].ids)} tokens")
        self._apart = {}
        whole = {row.slot: self._tree(row) for row in rows if self._crosses(row)}
        short = self._pass([part for row in rows if row.slot not in whole for part in self._below(row)], long=False)
        long = self._pass([part for row in rows if row.slot not in whole for part in self._above(row)], long=True)
        parts = [[found[row.slot] for found in (whole, short, long) if row.slot in found] for row in rows]
        return [
            torch.cat(found) if found else self._forward([row], None)[0] for row, found in zip(rows, parts, strict=True)
        ]

    def commit(self, slot: int, start: int, path: Sequence[int]) -> bool:
        """Take note of a commit; True if the latest tree was computed path by path, and the path has been fed here."""
        row = self._apart.pop(slot, None)
        if row is None:
            return False
        self._chain(slot, start, [row.token_ids[node] for node in path])
        return True

    def committed(self, slot: int, start: int, token_ids: Sequence[int]) -> None:
        """Keys of these tokens have been put behind `start`."""
        self._held[slot].ids[start:] = token_ids

    def copy(self, source: int, target: int, length: int) -> None:
        there = self._held[source]
        self._held[target] = _Held(there.ids[:length], there.long)

    def _crosses(self, row: Row) -> bool:
        """Whether a tree has nodes on both sides."""
        if row.parents is None or not row.parents:
            return False
        return row.start < self._first < row.start + max(depths(row.parents)) + 1

    def _below(self, row: Row) -> Iterator[Row]:
        room = max(0, self._first - row.start)
        if not room or not row.token_ids:
            return
        if row.parents is not None or len(row.token_ids) <= room:
            yield row
        else:
            yield replace(row, token_ids=row.token_ids[:room], logits_from=min(room, row.logits_from))

    def _above(self, row: Row) -> Iterator[Row]:
        room = max(0, self._first - row.start)
        if not room and row.token_ids:
            yield row
        elif row.parents is None and len(row.token_ids) > room:
            logits_from = max(0, row.logits_from - room)
            yield replace(row, start=self._first, token_ids=row.token_ids[room:], logits_from=logits_from)

    def _pass(self, rows: list[Row], *, long: bool) -> dict[int, Tensor]:
        if not rows:
            return {}
        reach = self._first if long else None
        for row in rows:
            held = self._held[row.slot]
            del held.ids[row.start :]
            if held.long is not long:
                held.long = None
                for at in range(0, row.start, _CHUNK):
                    chunk = held.ids[at : at + _CHUNK]
                    self._forward([Row(row.slot, at, chunk, logits_from=len(chunk))], reach)
                held.long = long
        found = self._forward(rows, reach)
        for row in rows:
            if row.parents is None:
                self._held[row.slot].ids.extend(row.token_ids)
        return {row.slot: logits for row, logits in zip(rows, found, strict=True)}

    def _tree(self, row: Row) -> Tensor:
        """A tree across the border, path by path."""
        logits: dict[int, Tensor] = {}
        for path in paths(row.parents or []):
            found = self._chain(row.slot, row.start, [row.token_ids[node] for node in path])
            logits.update(zip(path, found, strict=True))
        del self._held[row.slot].ids[row.start :]
        self._apart[row.slot] = row
        return torch.stack([logits[node] for node in range(row.logits_from, len(row.token_ids))])

    def _chain(self, slot: int, start: int, token_ids: list[int]) -> Tensor:
        row = Row(slot, start, token_ids)
        below = self._pass(list(self._below(row)), long=False)
        above = self._pass(list(self._above(row)), long=True)
        return torch.cat([found[slot] for found in (below, above) if found])
