"""A causal language model with key-value memory in slots: many ragged rows in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engines.runtime.rows import Row, check_path, check_rows
from engines.torch.attention import ATTENTION_NAME, PASS_ARGUMENT, AttentionPass, ShapeProbe, UnsupportedAttention
from engines.torch.batch import Batch, BatchBuilder
from engines.torch.graph_passes import GraphPasses
from engines.torch.kv_cache import SPARE, CacheShape, KeyValueCache, LayerShape
from engines.torch.long_rope import LongRope
from engines.torch.padding import Padding
from engines.torch.recurrent import RecurrentLayers, recurrent_modules
from engines.torch.short_passes import ShortPasses
from engines.torch.slot_attention import StaticPass
from engines.torch.support import attention_layers, changing_length, layer_window, recurrent_layers
from engines.torch.windows import Windows

__all__ = ["Row", "Runner"]

INVARIANT_BUCKET = 64
_MOST_AGAIN = 256
"""Tokens without logits that a pass carries for a sequence whose states have to be brought up to date."""
_MOST_AT_ONCE = 512
"""Tokens of a pass up to which attention row by row (slot_attention.py), which reads each token's keys for itself,
costs less than launching kernels for each sequence."""


class Runner:
    """A ModelRunner (engines/runtime/runner.py): a transformers causal language model over `num_slots` sequences.

    The model is changed in place. `slot_length` is the most tokens a sequence may have. Not for use from several
    threads at once. `short_passes` and `graph_passes`, if set, make the passes that they take. With `batch_invariant`
    a token's logits have the same bits whatever pass computed them, where the process's environment and the model
    allow it (engines.torch.batch_invariant prepares the model, finds the padding and checks). `spare` as of
    kv_cache.Stretch, `apart` of KeyValueCache.

    Raises:
        UnsupportedAttention: if the model's attention is not plain causal attention.
    """

    def __init__(
        self,
        model: Any,
        num_slots: int,
        slot_length: int,
        *,
        batch_invariant: bool = False,
        spare: int = SPARE,
        apart: int = 0,
    ) -> None:
        if num_slots < 1 or slot_length < 1:
            raise ValueError("num_slots and slot_length must be at least 1")
        self.model = model
        self.num_slots = num_slots
        self.slot_length = slot_length
        self.batch_invariant = batch_invariant
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        if self.device.type == "cuda":
            # It builds a plan, tenths of a second, for every new pair of lengths, and each pass brings new ones.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self._num_ids: int = model.get_input_embeddings().num_embeddings
        model.eval()
        text = model.config.get_text_config()
        self._recurrent = RecurrentLayers(model, num_slots) if recurrent_modules(model) else None
        parts = [key for key in model.config.sub_configs if getattr(model.config, key, None) is text]
        model.set_attn_implementation(dict.fromkeys(["", *parts], ATTENTION_NAME))
        bucket = INVARIANT_BUCKET if batch_invariant else 1
        first = changing_length(model.config)
        changes = first is not None and first < slot_length
        shape, windows = self._probe()
        if self._recurrent is None and not changes:
            shape = shape.with_windows(windows, slot_length, spare=spare, bucket=bucket)
        padded_length = -(-slot_length // bucket) * bucket
        self.cache = KeyValueCache(shape, num_slots, padded_length, self.dtype, self.device, apart)
        self._builder = BatchBuilder(self.cache, slot_length, bucket=bucket)
        self._latest: dict[int, Batch] = {}
        self._long_rope = LongRope(self._forward, first, num_slots) if first is not None and changes else None
        self._windows = Windows(self._forward, self.cache, shape.stretch) if shape.stretch is not None else None
        self.short_passes: ShortPasses | None = None
        self.graph_passes: GraphPasses | None = None
        self.attends_at_once = self.device.type == "cuda" and not batch_invariant and self.takes_chains
        """Whether attention over several sequences takes the same few kernels a layer as over one. One after the
        other, 28 layers over eight of them launch some thousand kernels, which takes longer than their work."""

    @property
    def padding(self) -> Padding:
        """What passes are filled up to: nothing, until bitwise mode finds that this machine needs it."""
        return self._builder.padding

    @padding.setter
    def padding(self, padding: Padding) -> None:
        self._builder.padding = padding

    def forward(self, rows: Sequence[Row]) -> list[Tensor]:
        """One pass over all rows.

        Returns, for each row, float32 logits [len(token_ids) - logits_from, vocab_size] on the model's device.

        Raises:
            ValueError: if a row does not fit (engines.runtime.rows.check_rows).
        """
        self.check(rows)
        self._latest = {}
        if self._recurrent is not None:
            return self._forward_recurrent(self._recurrent, rows)
        if self._long_rope is not None:
            return self._long_rope.forward(rows)
        if self._windows is not None:
            return self._forward_windows(self._windows, rows)
        return self._forward(rows)

    @property
    def takes_trees(self) -> bool:
        """Whether rows may be trees."""
        return self._recurrent is None

    def state_bytes(self) -> int:
        """Bytes of recurrent states that the slots hold now, snapshots included."""
        return self._recurrent.bytes() if self._recurrent is not None else 0

    @property
    def takes_chains(self) -> bool:
        """Whether static passes (engines/torch/chains.py) compute what this model's own do."""
        return self._is_plain and self._recurrent is None and self._long_rope is None

    def _forward(self, rows: Sequence[Row], reach: int | None = None) -> list[Tensor]:
        if not any(row.token_ids for row in rows):
            empty = torch.empty(0, self.vocab_size, device=self.device)
            return [empty for _ in rows]
        if self.short_passes is not None and self.short_passes.takes(rows):
            return self.short_passes.forward(rows)
        if self.graph_passes is not None and self.graph_passes.takes(rows):
            return self.graph_passes.forward(rows)
        batch = self._builder.build(rows, reach)
        logits = self.logits(batch.input_ids, batch.position_ids, batch.logits_index, self._attention(rows, batch))
        self._latest.update(dict.fromkeys(batch.trees, batch))
        return list(torch.split(logits[: sum(batch.kept)].float(), batch.kept))

    def _attention(self, rows: Sequence[Row], batch: Batch) -> AttentionPass:
        count = sum(len(row.token_ids) for row in rows)
        whole = not batch.trees and count == batch.input_ids.shape[1]  # not filled up
        if not (self.attends_at_once and len(rows) > 1 and whole and count <= _MOST_AT_ONCE):
            return batch.attention
        slots = torch.tensor([row.slot for row in rows for _ in row.token_ids], device=self.device)
        return StaticPass(self.cache.keys, self.cache.values, slots, batch.position_ids[0], self.cache.slot_length)

    @torch.inference_mode()
    def _forward_recurrent(self, recurrent: RecurrentLayers, rows: Sequence[Row]) -> list[Tensor]:
        """Passes that first bring states up to date where a snapshot is far behind, then the pass itself."""
        rows = recurrent.begin(rows)
        while late := {row.slot for row in rows if row.logits_from > _MOST_AGAIN}:
            self._forward_planned(recurrent, [_first_tokens(row) for row in rows if row.slot in late])
            rows = [_other_tokens(row) if row.slot in late else row for row in rows]
        return self._forward_planned(recurrent, rows)

    @torch.inference_mode()
    def _forward_windows(self, windows: Windows, rows: Sequence[Row]) -> list[Tensor]:
        return windows.forward(rows)

    def _forward_planned(self, recurrent: RecurrentLayers, rows: Sequence[Row]) -> list[Tensor]:
        recurrent.plan(rows)
        try:
            logits = self._forward(rows)
        except BaseException:
            recurrent.abandon(rows)
            raise
        recurrent.end(rows)
        return logits

    def check(self, rows: Sequence[Row]) -> None:
        """Raises ValueError if a row does not fit (engines.runtime.rows.check_rows)."""
        check_rows(rows, self.num_slots, self.slot_length, self._num_ids)

    @torch.inference_mode()
    def commit(self, slot: int, start: int, path: Sequence[int]) -> None:
        """Keep part of the latest pass's tree: its nodes `path`, root to leaf, become positions start, start + 1, …

        Raises:
            ValueError: if the latest pass fed no tree to `slot` at `start`, or `path` is not one from its root.
        """
        if not path:
            return
        if self._long_rope is not None and self._long_rope.commit(slot, start, path):
            return
        if slot not in self._latest:
            raise ValueError(f"the latest pass fed no tree to slot {slot}")
        batch = self._latest[slot]
        row, offset = batch.trees[slot]
        whole = row if self._windows is None else self._windows.tree(slot)
        check_path(whole, start, path)
        stem = row.start - whole.start  # fed as a chain
        nodes = torch.tensor([offset + node - stem for node in path[stem:]], dtype=torch.long, device=self.device)
        places = self.cache.places([(slot, row.start, len(nodes))])
        for layer, (keys, values) in batch.attention.kept.items():
            self.cache.write(layer, places, keys.index_select(0, nodes), values.index_select(0, nodes))
        if self._long_rope is not None:
            self._long_rope.committed(slot, start, [row.token_ids[node] for node in path])
        if self._windows is not None:
            self._windows.committed(slot, start, [whole.token_ids[node] for node in path])

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        """Make the first `length` positions of slot `target` those of `source`."""
        self.cache.copy(source, target, length)
        if self._recurrent is not None:
            self._recurrent.copy(source, target, length)
        if self._long_rope is not None and source != target:
            self._long_rope.copy(source, target, length)
        if self._windows is not None and source != target:
            self._windows.copy(source, target, length)

    def reusable(self, slot: int, length: int) -> int:
        """Of the first `length` tokens of a slot those that need not be fed again to go on behind them."""
        if self._recurrent is not None:
            return self._recurrent.reusable(slot, length)
        if self._windows is not None:
            return self._windows.reusable(slot, length)
        return length

    @property
    def vocab_size(self) -> int:
        """How many logits a row has; padding rows of the output layer included."""
        return self._vocab_size

    @torch.inference_mode()
    def logits(self, input_ids: Tensor, position_ids: Tensor, logits_index: Tensor, attention: AttentionPass) -> Tensor:
        """The model over flattened tokens, int64 [1, n] each → logits [r, vocab_size] after those at `logits_index`.

        Which sequences they belong to, and where keys and values go, only `attention` knows.
        """
        output = self.model(
            input_ids=input_ids,
            position_ids=position_ids,
            use_cache=False,
            logits_to_keep=logits_index,
            **{PASS_ARGUMENT: attention},
        )
        logits: Tensor = output.logits[0]
        return logits

    def _probe(self) -> tuple[CacheShape, dict[int, int | None]]:
        """Run one token to learn the layers' shapes and windows; refuse what this attention can't serve."""
        probe = ShapeProbe(self.slot_length)
        token = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        logits = self.logits(token, token, token[0], probe)
        self._vocab_size = logits.shape[-1]
        text = self.model.config.get_text_config()
        layers = attention_layers(self.model.config)
        if sorted(probe.shapes) != layers:
            raise UnsupportedAttention(
                f"{len(probe.shapes)} layers attend to keys and values, instead of {len(layers)}"
            )
        recurrent = self._recurrent.layers if self._recurrent is not None else []
        if recurrent != recurrent_layers(self.model.config):
            raise UnsupportedAttention(f"layers {recurrent} alone have a recurrent state that can be kept")
        windows = {}
        for layer in layers:
            special, said = probe.special[layer], layer_window(text, layer)
            windows[layer] = used = None if special is None else special.window
            if used != (None if said is None or said >= self.slot_length else said):
                raise UnsupportedAttention(
                    f"layer {layer} has a window of {used} tokens, its configuration one of {said}"
                )
        self._is_plain = len(set(probe.shapes.values())) == 1 and not any(probe.special.values())
        return CacheShape({layer: LayerShape(*probe.shapes[layer]) for layer in layers}), windows


def _first_tokens(row: Row) -> Row:
    return replace(row, token_ids=row.token_ids[:_MOST_AGAIN], logits_from=_MOST_AGAIN)


def _other_tokens(row: Row) -> Row:
    return replace(
        row,
        start=row.start + _MOST_AGAIN,
        token_ids=row.token_ids[_MOST_AGAIN:],
        logits_from=row.logits_from - _MOST_AGAIN,
    )
