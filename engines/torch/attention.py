"""Attention of a ragged pass: every sequence's tokens attend over its own slot of the key-value memory.

transformers calls `tandem_attention` in place of its own attention (its AttentionInterface), with all tokens of all
sequences flattened into one row. So embeddings, linear layers and norms run once over everything that waits, and
only attention knows which token belongs to whom.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from engines.errors import ModelError
from engines.torch.kv_cache import KeyValueCache

ATTENTION_NAME = "tandem"
PASS_ARGUMENT = "tandem_pass"
# What transformers hands to every attention function and that changes nothing here: positions are in the plan.
_HARMLESS = frozenset({"position_ids", "is_causal", "cache_position", "dropout"})


class UnsupportedAttention(ModelError):
    """The model asks for something in its attention that Tandem's does not compute."""


class AttentionPass(Protocol):
    """One forward pass, as its attention layers see it. `slot_length` is the longest a sequence may become."""

    slot_length: int

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """[1, heads, n, dim] queries, [1, key_value_heads, n, dim] keys and values → [1, n, heads, dim]."""
        ...


def tandem_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    current: AttentionPass | None = kwargs.pop(PASS_ARGUMENT, None)
    if current is None:
        raise UnsupportedAttention(f"{type(module).__name__} does not pass its arguments on to attention")
    window = kwargs.pop("sliding_window", None)
    if window is not None and current.slot_length > window:
        raise UnsupportedAttention(f"{type(module).__name__} attends over a sliding window of {window} tokens")
    if not kwargs.get("is_causal", getattr(module, "is_causal", True)):
        raise UnsupportedAttention(f"{type(module).__name__} is not causal")
    for name, argument in kwargs.items():
        if name not in _HARMLESS and argument is not None and argument is not False:
            raise UnsupportedAttention(f"{type(module).__name__} needs {name} in its attention")
    layer: Any = getattr(module, "layer_idx", None)
    if layer is None or attention_mask is not None:
        raise UnsupportedAttention(f"{type(module).__name__} has no layer_idx or builds its own attention mask")
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    return current.attend(int(layer), query, key, value, scaling), None


AttentionInterface.register(ATTENTION_NAME, tandem_attention)


@dataclass(frozen=True, slots=True)
class Segment:
    """Queries of one sequence, at consecutive positions, that attend over one length of its slot.

    Grouped-query attention without repeating keys: the query heads that share a key head are rows beside each other,
    so a token is `group` rows and one slot one batch of `key_value_heads` plain attentions. `rows` are the queries'
    among the pass's [tokens · group]; keys are positions [0, key_length) of the slot; `mask` (additive, [rows,
    key_length]) hides those after the query's own, None if there are none. Before attending, the tree nodes
    `nodes` (tokens of the pass) are put to `places` in the key-value memory, if there are any.
    """

    rows: slice | Tensor
    slot: int
    key_length: int
    mask: Tensor | None
    nodes: Tensor | None = None
    places: Tensor | None = None


@dataclass(slots=True)
class RaggedPass:
    """Writes the chains' keys and values to their slots, then attends segment by segment.

    `chain_tokens` are written to `chain_places`; `chain_tokens` None says that they are all the pass's tokens. Where
    the pass holds a tree, `keep`: `kept` gathers [tokens, heads, dim] keys and values of every layer. A segment's last
    query is repeated up to a multiple of `query_multiple`.
    """

    cache: KeyValueCache
    segments: list[Segment]
    chain_tokens: Tensor | None
    chain_places: Tensor
    slot_length: int
    keep: bool = False
    query_multiple: int = 1
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        heads, tokens, dim = query.shape[1:]
        key_value_heads = key.shape[1]
        keys, values = key[0].transpose(0, 1), value[0].transpose(0, 1)
        if self.chain_tokens is None:
            self.cache.write(layer, self.chain_places, keys, values)
        elif len(self.chain_tokens):
            self._place(layer, self.chain_tokens, self.chain_places, keys, values)
        if self.keep:
            self.kept.append((keys, values))
        grouped = query.reshape(1, key_value_heads, heads // key_value_heads, tokens, dim).transpose(2, 3)
        grouped = grouped.reshape(1, key_value_heads, -1, dim)
        attended = grouped.new_zeros(*grouped.shape[:3], value.shape[3])
        for segment in self.segments:
            if segment.nodes is not None and segment.places is not None:
                self._place(layer, segment.nodes, segment.places, keys, values)
            slot_keys, slot_values = self.cache.read(layer, segment.slot, segment.key_length)
            queries, mask = grouped[:, :, segment.rows], segment.mask
            count = queries.shape[2]
            if missing := -count % self.query_multiple:
                queries = torch.cat([queries, queries[:, :, -1:].expand(-1, -1, missing, -1)], dim=2)
                mask = None if mask is None else torch.cat([mask, mask[-1:].expand(missing, -1)])
            segment_attended = scaled_dot_product_attention(
                queries, slot_keys, slot_values, attn_mask=mask, scale=scaling
            )
            attended[:, :, segment.rows] = segment_attended[:, :, :count]
        attended = attended.view(key_value_heads, tokens, -1, value.shape[3]).transpose(0, 1)
        return attended.reshape(1, tokens, heads, -1)

    def _place(self, layer: int, tokens: Tensor, places: Tensor, keys: Tensor, values: Tensor) -> None:
        self.cache.write(layer, places, keys.index_select(0, tokens), values.index_select(0, tokens))


@dataclass(slots=True)
class ShapeProbe:
    """Stands in for attention once, to learn the shapes that the model's layers really have."""

    slot_length: int
    heads: dict[int, int] = field(default_factory=dict)
    shapes: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        if layer in self.heads:
            raise UnsupportedAttention(f"layer {layer} attends more than once")
        self.heads[layer] = query.shape[1]
        self.shapes[layer] = (key.shape[1], key.shape[3], value.shape[3])
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


def causal_mask(
    first: int, count: int, key_length: int, group: int, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """Additive mask over `key_length` keys for queries at first, first + 1, …, each repeated `group` times."""
    if count == 1 and key_length == first + 1:
        return None
    mask = torch.full((count, key_length), float("-inf"), dtype=dtype, device=device).triu_(first + 1)
    return mask if group == 1 else mask.repeat_interleave(group, dim=0)
