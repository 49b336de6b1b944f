"""Passes of a few tokens through a trained draft with int8 weights, written out.

A token's pass through so small a model is calls rather than products: in transformers' modules it takes several times
what the products do. Here a layer is a dozen calls: layers that read one tensor are one product, rotary tables are
made once, keys and values go straight into the slots. The same numbers but for rounding; longer passes and trees
remain with the modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from engines.runtime.rows import Row
from engines.torch.draft_weights import CutHead
from engines.torch.int8_linear import MOST_ROWS, Int8Linear, Packed, joined, product
from engines.torch.kv_cache import KeyValueCache, Span
from engines.torch.segments import causal_mask

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Types whose layers are these: norm, attention over rotated queries and keys, norm, gated MLP."""


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Tensor
    eps: float

    def __call__(self, values: Tensor) -> Tensor:
        return torch.rms_norm(values, values.shape[-1:], self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class _Layer:
    """`queries_keys` [heads + key_value_heads, dim]: each head's norm before it is rotated, if the family has one."""

    before_attention: _Norm
    queries_keys_values: Packed
    queries_keys: tuple[Tensor, float] | None
    output: Packed
    before_mlp: _Norm
    gate_up: Packed
    activation: Callable[[Tensor], Tensor]
    down: Packed


class ShortPasses:
    """Passes over up to MOST_ROWS tokens of chains, with the model and the key-value memory of a runner."""

    def __init__(self, model: Any, cache: KeyValueCache) -> None:
        """`model` is one that `runs_short` allows; `cache`: of layers that are all alike and hold everything."""
        config, decoder = model.config, model.model
        self._cache = cache
        self._embedding: Tensor = decoder.embed_tokens.weight
        self._layers = [_layer(layer, config) for layer in decoder.layers]
        self._norm = _norm(decoder.norm)
        self._head: nn.Module = model.lm_head
        attention = decoder.layers[0].self_attn
        self._dim: int = attention.head_dim
        self._heads: int = config.num_attention_heads
        self._key_value_heads: int = config.num_key_value_heads
        self._scaling: float = attention.scaling
        self._cos, self._sin = _rotary_tables(decoder.rotary_emb, cache.slot_length, self._dim)

    @property
    def ids(self) -> Tensor | None:
        """The ids that `logits` are of, int64 [k], ascending; None: all."""
        return self._head.kept if isinstance(self._head, CutHead) else None

    def takes(self, rows: Sequence[Row]) -> bool:
        return sum(len(row.token_ids) for row in rows) <= MOST_ROWS and all(row.parents is None for row in rows)

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row]) -> list[Tensor]:
        """Logits as of Runner.forward."""
        wanted: list[int] = []
        first = 0
        for row in rows:
            wanted += range(first + row.logits_from, first + len(row.token_ids))
            first += len(row.token_ids)
        hidden = self._read(rows)
        logits: Tensor = self._head(hidden[wanted] if len(wanted) < first else hidden)
        return list(torch.split(logits, [len(row.token_ids) - row.logits_from for row in rows]))

    @torch.inference_mode()
    def logits(self, rows: Sequence[Row]) -> Tensor:
        """Feed the rows → logits float32 [rows, k] after the last token of each, for `ids` alone."""
        last, place = [], -1
        for row in rows:
            place += len(row.token_ids)
            last.append(place)
        hidden = self._read(rows)
        head = self._head.rows if isinstance(self._head, CutHead) else self._head
        logits: Tensor = head(hidden[last] if len(last) <= place else hidden)
        return logits

    def _read(self, rows: Sequence[Row]) -> Tensor:
        """Feed the rows → what the head reads after each of their n tokens, [n, hidden]."""
        spans: list[Span] = [(row.slot, row.start, len(row.token_ids)) for row in rows]
        positions = [start + i for _, start, count in spans for i in range(count)]
        index = torch.tensor([[token for row in rows for token in row.token_ids], positions])
        cos, sin = self._cos[index[1]], self._sin[index[1]]
        places = self._cache.places(spans)
        group = self._heads // self._key_value_heads
        masks = [
            causal_mask(first, count, 0, first + count, None, group, cos.dtype, cos.device) for _, first, count in spans
        ]
        heads = self._heads + self._key_value_heads
        hidden = self._embedding[index[0]]
        for number, layer in enumerate(self._layers):
            read = product(layer.queries_keys_values, layer.before_attention(hidden))
            read = read.view(len(positions), heads + self._key_value_heads, self._dim)
            turning = read[:, :heads]
            if layer.queries_keys is not None:
                weight, eps = layer.queries_keys
                turning = torch.rms_norm(turning, (self._dim,), None, eps) * weight
            turned = (turning * cos).addcmul_(turning.roll(self._dim // 2, -1), sin)
            self._cache.write(number, places, turned[:, self._heads :], read[:, heads:])
            attended = self._attend(number, turned[:, : self._heads], spans, masks)
            hidden = hidden + product(layer.output, attended)
            gate, up = product(layer.gate_up, layer.before_mlp(hidden)).chunk(2, -1)
            hidden += product(layer.down, layer.activation(gate) * up)
        return self._norm(hidden)

    def _attend(self, layer: int, queries: Tensor, spans: Sequence[Span], masks: Sequence[Tensor | None]) -> Tensor:
        """[n, heads, dim] → [n, heads · dim]: each span over its own slot, heads that share keys beside each other."""
        found = []
        place = 0
        for (slot, first, count), mask in zip(spans, masks, strict=True):
            keys, values = self._cache.read(layer, slot, 0, first + count)
            own = queries[place : place + count].view(count, self._key_value_heads, -1, self._dim).transpose(0, 1)
            own = own.reshape(1, self._key_value_heads, -1, self._dim)
            one = scaled_dot_product_attention(own, keys, values, attn_mask=mask, scale=self._scaling)
            one = one.view(self._key_value_heads, count, -1, self._dim).transpose(0, 1)
            found.append(one.reshape(count, -1))
            place += count
        return found[0] if len(found) == 1 else torch.cat(found)


def runs_short(model: Any) -> bool:
    """Whether the model is one whose passes are written out here, all its products int8."""
    if model.config.model_type not in FAMILIES:
        return False
    head = model.lm_head.rows if isinstance(model.lm_head, CutHead) else model.lm_head
    products = [head]
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        products += [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
        products += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    return all(isinstance(one, Int8Linear) for one in products)


def _layer(layer: Any, config: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    queries_keys = None
    if config.model_type == "qwen3":
        queries, keys = attention.q_norm, attention.k_norm
        weights = [queries.weight.expand(config.num_attention_heads, -1)]
        weights.append(keys.weight.expand(config.num_key_value_heads, -1))
        queries_keys = torch.cat(weights), queries.variance_epsilon
    return _Layer(
        before_attention=_norm(layer.input_layernorm),
        queries_keys_values=joined([attention.q_proj, attention.k_proj, attention.v_proj]),
        queries_keys=queries_keys,
        output=attention.o_proj.packed,
        before_mlp=_norm(layer.post_attention_layernorm),
        gate_up=joined([mlp.gate_proj, mlp.up_proj]),
        activation=mlp.act_fn,
        down=mlp.down_proj.packed,
    )


def _norm(norm: Any) -> _Norm:
    return _Norm(norm.weight, norm.variance_epsilon)


def _rotary_tables(rotary: Any, length: int, dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position, float32 [length, 1, dim], the sines signed for a head rolled by half."""
    positions = torch.arange(length)[None]
    with torch.inference_mode():
        cos, sin = rotary(torch.zeros(1, 1, dim), positions)
    half = dim // 2
    return cos[0, :, None], torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)[:, None]
