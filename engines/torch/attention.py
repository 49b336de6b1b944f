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
from engines.torch.kv_cache import KeyValueCache, Places
from engines.torch.segments import Segment

ATTENTION_NAME = "tandem"
PASS_ARGUMENT = "tandem_pass"
# Arguments that transformers passes to every attention function and that have no effect here: the plan has positions,
# and the head picks logits (LLaVA-OneVision passes all of its arguments on).
_HARMLESS = frozenset({"position_ids", "is_causal", "cache_position", "dropout", "logits_to_keep"})


class UnsupportedAttention(ModelError):
    """The model's attention needs something that Tandem's does not compute."""


@dataclass(frozen=True, slots=True)
class Special:
    """What a layer does beyond plain attention over everything before a token.

    `window`: a token sees itself and the `window` - 1 tokens before it. `softcap`: scores become softcap · tanh(score
    / softcap) (Gemma 2, arXiv:2408.00118). `sinks` [heads]: one more score for every head, which takes its share of the
    softmax and brings no value (gpt-oss; "attention sinks", arXiv:2309.17453).
    """

    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


class AttentionPass(Protocol):
    """One forward pass, as its attention layers see it."""

    @property
    def slot_length(self) -> int:
        """The most tokens a sequence may have."""
        ...

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, special: Special | None
    ) -> Tensor:
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
    window: int | None = kwargs.pop("sliding_window", None)
    softcap: float | None = kwargs.pop("softcap", None)
    sinks: Tensor | None = kwargs.pop("s_aux", None)
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
    if window is not None and window >= current.slot_length:
        window = None  # no sequence gets that long
    special = None
    if window is not None or softcap is not None or sinks is not None:
        special = Special(window, softcap, sinks)
    return current.attend(int(layer), query, key, value, scaling, special), None


AttentionInterface.register(ATTENTION_NAME, tandem_attention)


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
    chain_places: Places
    slot_length: int
    keep: bool = False
    query_multiple: int = 1
    kept: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, special: Special | None
    ) -> Tensor:
        heads, tokens, dim = query.shape[1:]
        key_value_heads = key.shape[1]
        group = heads // key_value_heads
        keys, values = key[0].transpose(0, 1), value[0].transpose(0, 1)
        if self.chain_tokens is None:
            self.cache.write(layer, self.chain_places, keys, values)
        elif len(self.chain_tokens):
            self._place(layer, self.chain_tokens, self.chain_places, keys, values)
        if self.keep:
            self.kept[layer] = (keys, values)
        grouped = query.reshape(1, key_value_heads, group, tokens, dim).transpose(2, 3)
        grouped = grouped.reshape(1, key_value_heads, -1, dim)
        attended = grouped.new_zeros(*grouped.shape[:3], value.shape[3])
        window = None if special is None else special.window
        for segment in self.segments:
            if segment.nodes is not None and segment.places is not None:
                self._place(layer, segment.nodes, segment.places, keys, values)
            rows, low, mask = segment.seen(group, window, query.dtype, query.device)
            slot_keys, slot_values = self.cache.read(layer, segment.slot, low, segment.key_length)
            queries = grouped[:, :, rows]
            count = queries.shape[2]
            if missing := -count % self.query_multiple:
                queries = torch.cat([queries, queries[:, :, -1:].expand(-1, -1, missing, -1)], dim=2)
                mask = None if mask is None else torch.cat([mask, mask[-1:].expand(missing, -1)])
            if special is None or (special.softcap is None and special.sinks is None):
                found = scaled_dot_product_attention(queries, slot_keys, slot_values, attn_mask=mask, scale=scaling)
            else:
                found = special_attention(queries, slot_keys, slot_values, mask, scaling, special)
            attended[:, :, rows] = found[:, :, :count]
        attended = attended.view(key_value_heads, tokens, -1, value.shape[3]).transpose(0, 1)
        return attended.reshape(1, tokens, heads, -1)

    def _place(self, layer: int, tokens: Tensor, places: Places, keys: Tensor, values: Tensor) -> None:
        self.cache.write(layer, places, keys.index_select(0, tokens), values.index_select(0, tokens))


def special_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float, special: Special
) -> Tensor:
    """Attention with capped scores or sinks, for which torch has no kernel; the softmax is in float32.

    `queries` [1, key_value_heads, n, dim], the query heads of a token beside each other; `keys` and `values` [1,
    key_value_heads, m, dim]; `mask` [n, m], additive → [1, key_value_heads, n, dim].
    """
    scores = (queries @ keys.transpose(2, 3)).float() * scaling
    if special.softcap is not None:
        scores = (scores / special.softcap).tanh() * special.softcap
    if mask is not None:
        scores = scores + mask
    if special.sinks is None:
        weights = scores.softmax(-1)
    else:
        heads = special.sinks.float().view(scores.shape[1], -1)
        of_rows = torch.arange(scores.shape[2], device=scores.device) % heads.shape[1]
        weights = torch.cat([scores, heads[:, of_rows][None, :, :, None]], dim=-1).softmax(-1)[..., :-1]
    return weights.to(values.dtype) @ values


@dataclass(slots=True)
class ShapeProbe:
    """Replaces attention for one pass, to learn the true shapes of the model's layers and their windows."""

    slot_length: int
    heads: dict[int, int] = field(default_factory=dict)
    shapes: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    special: dict[int, Special | None] = field(default_factory=dict)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, special: Special | None
    ) -> Tensor:
        if layer in self.heads:
            raise UnsupportedAttention(f"layer {layer} attends more than once")
        self.heads[layer] = query.shape[1]
        self.shapes[layer] = (key.shape[1], key.shape[3], value.shape[3])
        self.special[layer] = special
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])
