"""Sequences in layers with a sliding window, of which a slot holds only a stretch (kv_cache.Stretch).

The runner may be asked to go on from any point of what a slot held. Layers that see everything have it all; of those
with a window, what lies further back than the stretch is gone. Then the last snapshot of the window before that point
is put back, or nothing, and the tokens from there on are fed again, in front of what is new. That gives the keys that
were there: nothing that is computed depends on how a sequence was cut into passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engines.runtime.rows import Row, depths
from engines.torch.kv_cache import WINDOW_SNAPSHOTS, KeyValueCache, Stretch, WindowSnapshot
from engines.torch.snapshots import latest, with_snapshot

Forward = Callable[[Sequence[Row]], list[Tensor]]


@dataclass(slots=True)
class _Held:
    """The tokens that a slot holds in layers that see everything; in those with a window it holds them from the
    stretch's base up to `end`."""

    ids: list[int] = field(default_factory=list)
    end: int = 0
    snapshots: list[WindowSnapshot] = field(default_factory=list)


class Windows:
    """Passes for a model whose `cache` has windowed layers; `forward` runs rows as they are."""

    def __init__(self, forward: Forward, cache: KeyValueCache, stretch: Stretch) -> None:
        self._forward = forward
        self._cache = cache
        self._stretch = stretch
        self._held = [_Held() for _ in range(cache.num_slots)]
        self._trees: dict[int, Row] = {}

    def forward(self, rows: Sequence[Row]) -> list[Tensor]:
        """Logits as of Runner.forward; in several passes where a row brings more than the stretch has room for.

        Raises:
            ValueError: if a row begins behind what its slot holds, or a tree is deeper than there is room.
        """
        for index, row in enumerate(rows):
            if row.start > len(self._held[row.slot].ids):
                raise ValueError(f"rows[{index}]: slot {row.slot} holds {len(self._held[row.slot].ids)} tokens")
        stems = [self._stem(index, row) for index, row in enumerate(rows)]
        self._trees = {row.slot: row for row in rows if row.parents is not None}
        parts = [list(self._parts(row, stem)) for row, stem in zip(rows, stems, strict=True)]
        found: list[list[Tensor]] = [[] for _ in rows]
        for step in range(max(map(len, parts), default=0)):
            chosen = [(own[step], logits) for own, logits in zip(parts, found, strict=True) if step < len(own)]
            for (_, logits), more in zip(chosen, self._pass([row for row, _ in chosen]), strict=True):
                logits.append(more)
        return [logits[0] if len(logits) == 1 else torch.cat(logits) for logits in found]

    def tree(self, slot: int) -> Row:
        """The latest tree of a slot, whole: the pass may have got its stem as a chain."""
        return self._trees[slot]

    def committed(self, slot: int, start: int, token_ids: Sequence[int]) -> None:
        """Keys of these tokens have been put behind `start`, or were fed as a stem that may go on behind them."""
        held = self._held[slot]
        held.ids[start:] = token_ids
        if held.end > len(held.ids):
            self._rewind(slot, len(held.ids))
        else:
            held.end = len(held.ids)

    def copy(self, source: int, target: int, length: int) -> None:
        """Make the first `length` tokens of slot `target` those of `source`, as far as the stretch or snapshots go."""
        there, here = self._held[source], self._held[target]
        here.ids = there.ids[:length]
        here.snapshots = [snapshot for snapshot in there.snapshots if snapshot.position <= length]
        end = min(there.end, length)
        if self._cache.bases[source] <= self._stretch.lowest(end):
            self._cache.copy_stretch(source, target, end)
            here.end = end
        else:
            self._put_back(target, latest(here.snapshots, length))

    def reusable(self, slot: int, length: int) -> int:
        """Up to where the first `length` tokens of a slot need not be fed again."""
        held = self._held[slot]
        if held.end <= length or self._cache.bases[slot] <= self._stretch.lowest(length):
            return min(held.end, length)
        snapshot = latest(held.snapshots, length)
        return 0 if snapshot is None else snapshot.position

    def _stem(self, index: int, row: Row) -> int:
        """How many of a tree's first tokens have to be fed as a chain, so that what is left fits into a pass."""
        if not row.parents:
            return 0
        room, deep = self._stretch.room, max(depths(row.parents)) + 1
        if deep <= room:
            return 0
        # A chain from the root on, whose last node alone has other children than the next node.
        stem = next((i for i, parent in enumerate(row.parents) if parent != i - 1), len(row.parents) - 1)
        stem = min([stem, *(parent + 1 for parent in row.parents[stem:])])
        if deep - stem > room:
            raise ValueError(f"rows[{index}]: a tree {deep - stem} tokens deep, where a pass has room for {room}")
        return stem

    def _parts(self, row: Row, stem: int) -> Iterator[Row]:
        """The row, behind tokens that have to be fed again, in parts that fit into passes."""
        at = self._rewind(row.slot, row.start)
        again = self._held[row.slot].ids[at:]
        count = len(row.token_ids) if row.parents is None else stem
        chain = [*again, *row.token_ids[:count]]
        wanted = len(again) + min(row.logits_from, count)
        room = self._stretch.room
        for first in range(0, len(chain), room):
            tokens = chain[first : first + room]
            yield Row(row.slot, at + first, tokens, logits_from=min(max(wanted - first, 0), len(tokens)))
        if row.parents is not None:
            parents = [max(parent - stem, -1) for parent in row.parents[stem:]]
            yield Row(row.slot, row.start + stem, row.token_ids[stem:], parents, max(row.logits_from - stem, 0))
        elif not chain:
            yield row

    def _rewind(self, slot: int, start: int) -> int:
        """Forget what comes after `start`; returns from where on windowed layers have to be fed again."""
        held = self._held[slot]
        del held.ids[start:]
        held.snapshots = [snapshot for snapshot in held.snapshots if snapshot.position <= start]
        if held.end > start:
            if self._cache.bases[slot] <= self._stretch.lowest(start):
                held.end = start
            else:
                self._put_back(slot, latest(held.snapshots, start))
        return held.end

    def _put_back(self, slot: int, snapshot: WindowSnapshot | None) -> None:
        self._cache.put_back(slot, snapshot)
        self._held[slot].end = 0 if snapshot is None else snapshot.position

    def _pass(self, rows: Sequence[Row]) -> list[Tensor]:
        for row in rows:
            count = len(row.token_ids) if row.parents is None else max(depths(row.parents), default=-1) + 1
            if row.start + count > self._cache.bases[row.slot] + self._stretch.places:
                self._cache.move_on(row.slot, self._stretch.begins(row.start), row.start)
        logits = self._forward(rows)
        for row in rows:
            if row.parents is None:
                self._fed(row)
        return logits

    def _fed(self, row: Row) -> None:
        """Take note of a chain, and of its window where it is certain to stay and the last snapshot is far behind."""
        held = self._held[row.slot]
        end = row.start + len(row.token_ids)
        held.ids[row.start : end] = row.token_ids
        held.end = end
        certain = min(row.start + row.logits_from + 1, end)
        newest = max((snapshot.position for snapshot in held.snapshots), default=0)
        if certain - newest >= self._stretch.spare:
            snapshot = self._cache.take(row.slot, self._stretch.lowest(certain), certain)
            held.snapshots = with_snapshot(held.snapshots, snapshot, WINDOW_SNAPSHOTS)
