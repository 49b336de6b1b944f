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
    """Consecutive queries of one sequence that attend over one length of its slot.

    `tokens` are the queries in the flattened pass; keys are positions [0, key_length) of the slot, `mask` (additive,
    [queries × group, key_length], rows ordered query-major) hides those after the query's own; None where there are
    none. `place` puts a path of tree nodes (flattened indices) to positions from `place_at` on before attending.
    """

    tokens: slice | Tensor
    slot: int
    key_length: int
    mask: Tensor | None
    place: Tensor | None = None
    place_at: int = 0


@dataclass(slots=True)
class RaggedPass:
    """Writes the chains' keys and values to their slots, then attends segment by segment."""

    cache: KeyValueCache
    segments: list[Segment]
    # (slot, first position, flattened tokens) of every chain
    writes: list[tuple[int, int, slice]]
    num_tokens: int
    slot_length: int
    # where a tree is in the pass: its keys and values of every layer, for `Runner.commit`
    keep: bool = False
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        for slot, start, tokens in self.writes:
            self.cache.write(layer, slot, start, key[0, :, tokens], value[0, :, tokens])
        if self.keep:
            self.kept.append((key[0], value[0]))
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        if len(self.segments) == 1 and self.segments[0].tokens == slice(0, self.num_tokens):
            return _attend(self.segments[0], query, keys, values, scaling)[None]
        output = query.new_zeros(1, self.num_tokens, query.shape[1], values.shape[-1])
        for segment in self.segments:
            if segment.place is not None:
                nodes = segment.place
                self.cache.write(layer, segment.slot, segment.place_at, key[0, :, nodes], value[0, :, nodes])
            output[0, segment.tokens] = _attend(segment, query[:, :, segment.tokens], keys, values, scaling)
        return output


def _attend(segment: Segment, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """[1, heads, n, key_dim] queries over one slot → [n, heads, value_dim].

    Grouped-query attention without repeating keys: the query heads that share a key head become rows beside each
    other (query-major), so one slot is one batch of `key_value_heads` plain attentions.
    """
    slot_keys = keys[segment.slot : segment.slot + 1, :, : segment.key_length]
    slot_values = values[segment.slot : segment.slot + 1, :, : segment.key_length]
    heads, count, dim = query.shape[1:]
    key_value_heads = slot_keys.shape[1]
    group = heads // key_value_heads
    grouped = query.reshape(1, key_value_heads, group, count, dim).transpose(2, 3)
    grouped = grouped.reshape(1, key_value_heads, count * group, dim)
    attended = scaled_dot_product_attention(grouped, slot_keys, slot_values, attn_mask=segment.mask, scale=scaling)
    attended = attended.reshape(key_value_heads, count, group, -1).transpose(0, 1)
    return attended.reshape(count, heads, -1)


@dataclass(slots=True)
class ShapeProbe:
    """Stands in for attention once, to learn the shapes that the model's layers really have."""

    slot_length: int
    heads: dict[int, int] = field(default_factory=dict)
    shapes: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
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
