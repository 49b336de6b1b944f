"""From rows to one flattened pass: ids, positions, what is written where, and who attends over what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engines.runtime.rows import Row, depths, paths
from engines.torch.attention import RaggedPass
from engines.torch.kv_cache import KeyValueCache, Places, Span
from engines.torch.padding import Padding
from engines.torch.segments import Segment


@dataclass(slots=True)
class Batch:
    """One pass, ready to run. `kept[i]` rows of logits belong to rows[i].

    `trees` has, by slot, every tree row and its first flattened token.
    """

    input_ids: Tensor
    position_ids: Tensor
    logits_index: Tensor
    kept: list[int]
    trees: dict[int, tuple[Row, int]]
    attention: RaggedPass


class BatchBuilder:
    """Builds batches for one model.

    `bucket`: key lengths are padded to its multiples and chains are split where their padded length changes, so that
    the length a token attends over depends on its own position alone (1: no padding, nothing is split).
    `padding`: passes and selections of logits repeat their last token, attentions their last query, up to its numbers.
    It may be set anew between passes.
    """

    def __init__(self, cache: KeyValueCache, slot_length: int, bucket: int = 1) -> None:
        self._cache = cache
        self._slot_length = slot_length
        self._bucket = bucket
        self.padding = Padding()

    def build(self, rows: Sequence[Row], reach: int | None = None) -> Batch:
        """With a token more, which nobody sees, at position `reach`, if that is given."""
        ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        kept: list[int] = []
        trees: dict[int, tuple[Row, int]] = {}
        segments: list[Segment] = []
        chain_tokens: list[int] = []
        chain_spans: list[Span] = []
        for row in rows:
            offset, count = len(ids), len(row.token_ids)
            ids.extend(row.token_ids)
            if row.parents is None:
                positions.extend(range(row.start, row.start + count))
                chain_tokens.extend(range(offset, offset + count))
                chain_spans.append((row.slot, row.start, count))
                segments.extend(self._chain(row.slot, row.start, offset, count))
            else:
                positions.extend(row.start + depth for depth in depths(row.parents))
                trees[row.slot] = (row, offset)
                segments.extend(self._tree(row.slot, row.start, offset, row.parents))
            wanted.extend(range(offset + row.logits_from, offset + count))
            kept.append(count - row.logits_from)
        if reach is not None:
            ids.append(ids[-1])
            positions.append(reach)
        missing = self.padding.rows(len(ids)) - len(ids)
        ids.extend(ids[-1:] * missing)
        positions.extend(positions[-1:] * missing)
        wanted.extend(wanted[-1:] * (self.padding.rows(len(wanted)) - len(wanted)))
        attention = RaggedPass(
            cache=self._cache,
            segments=segments,
            chain_tokens=None if len(chain_tokens) == len(ids) else self._index(chain_tokens),
            chain_places=self._cache.places(chain_spans),
            slot_length=self._slot_length,
            keep=bool(trees),
            query_multiple=self.padding.attention,
        )
        return Batch(
            input_ids=self._index(ids)[None],
            position_ids=self._index(positions)[None],
            logits_index=self._index(wanted),
            kept=kept,
            trees=trees,
            attention=attention,
        )

    def _index(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._cache.device)

    def _key_length(self, position: int) -> int:
        return (position // self._bucket + 1) * self._bucket

    def _runs(self, start: int, count: int) -> list[tuple[int, int, int]]:
        """(first, count, key length) of the pieces of [start, start + count) that attend over one length."""
        if self._bucket == 1:
            return [(start, count, start + count)] if count else []
        runs = []
        position, end = start, start + count
        while position < end:
            length = self._key_length(position)
            run = min(end, length) - position
            runs.append((position, run, length))
            position += run
        return runs

    def _chain(self, slot: int, start: int, offset: int, count: int) -> list[Segment]:
        return [
            Segment(
                tokens=slice(offset + first - start, offset + first - start + run),
                slot=slot,
                first=first,
                count=run,
                key_length=length,
                bucket=self._bucket,
            )
            for first, run, length in self._runs(start, count)
        ]

    def _tree(self, slot: int, start: int, offset: int, parents: Sequence[int]) -> list[Segment]:
        """Leaf by leaf: put the leaf's path behind the context, attend for those of its nodes not yet attended.

        Each path is computed exactly as the same tokens would be as a chain, positions and lengths alike; that is
        what makes a tree's logits equal a chain's bit for bit.
        """
        segments = []
        done: set[int] = set()
        for path in paths(parents):
            shared = next(depth for depth, node in enumerate(path) if node not in done)
            done.update(path)
            nodes: Tensor | None = self._index([offset + node for node in path])
            places: Places | None = self._cache.places([(slot, start, len(path))])
            for first, run, length in self._runs(start + shared, len(path) - shared):
                own = [offset + node for node in path[first - start : first - start + run]]
                segments.append(Segment(self._index(own), slot, first, run, length, nodes, places, self._bucket))
                nodes = places = None  # placed by the first run
        return segments
