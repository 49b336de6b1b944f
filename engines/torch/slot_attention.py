"""Attention of a static pass: every row is one token at a place of its own, known by tensors, not by Python.

What engines/torch/attention.py does segment by segment, with lengths that Python knows, happens here row by row, with
slots and positions that lie on the device: the shapes are the same every time, so that a pass can be compiled once and
captured in CUDA graphs. It is one operator to torch.compile, which leaves it alone and fuses what is around it.

A row may be *apart*: of a slot it reads only the first `shared` tokens, and what comes after them lies elsewhere in the
same memory, with an `offset`: the token at position p at offset + p.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engines.torch.attention import Special, UnsupportedAttention


@torch.library.custom_op("tandem::slot_attention", mutates_args=("keys", "values"))
def slot_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    layer: int,
    slots: Tensor,
    positions: Tensor,
    slot_length: int,
    scaling: float,
    shared: Tensor | None = None,
    offsets: Tensor | None = None,
) -> Tensor:
    """Put n tokens' keys and values to their places, then let each attend to its slot up to its own position.

    `query` [heads, n, key_dim], `key` [key_value_heads, n, key_dim], `value` [key_value_heads, n, value_dim]; `keys`
    and `values` are a KeyValueCache's, of which layer `layer` is used; `slots` and `positions` int64 [n] → [n, heads,
    value_dim]. Rows of one slot may come together, in any order. Rows with one place must be equal. `shared` and
    `offsets`, int64 [n], both or neither: of rows that are apart; offsets of others are those of their slots.
    """
    if query.is_cuda:
        from engines.torch.slot_kernel import attend  # triton is there with CUDA alone

        with torch.cuda.device(query.device):  # triton launches on the current one
            memory = keys[layer], values[layer]
            return attend(query, key, value, *memory, slots, positions, slot_length, scaling, shared, offsets)
    firsts = slots * slot_length
    if shared is None or offsets is None:
        shared, offsets = positions + 1, firsts
    places = offsets + positions
    keys[layer].index_copy_(0, places, key.transpose(0, 1))
    values[layer].index_copy_(0, places, value.transpose(0, 1))
    attended = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
    each = zip(firsts.tolist(), positions.tolist(), shared.tolist(), offsets.tolist(), strict=True)
    for row, (first, position, common, offset) in enumerate(each):
        common = min(common, position + 1)
        parts = slice(first, first + common), slice(offset + common, offset + position + 1)
        grouped = query[:, row].view(1, key.shape[0], -1, query.shape[2])
        slot_keys, slot_values = (
            torch.cat([held[layer, part] for part in parts]).transpose(0, 1)[None] for held in (keys, values)
        )
        one = scaled_dot_product_attention(grouped, slot_keys, slot_values, scale=scaling)
        attended[row] = one.view(query.shape[0], -1)
    return attended


@slot_attention.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    layer: int,
    slots: Tensor,
    positions: Tensor,
    slot_length: int,
    scaling: float,
    shared: Tensor | None = None,
    offsets: Tensor | None = None,
) -> Tensor:
    return query.new_empty(query.shape[1], query.shape[0], value.shape[2])


@dataclass(frozen=True, slots=True)
class StaticPass:
    """An AttentionPass (engines/torch/attention.py) whose row i is one token at `positions[i]` of `slots[i]`, or apart,
    as `shared` and `offsets` say (see slot_attention)."""

    keys: Tensor
    values: Tensor
    slots: Tensor
    positions: Tensor
    slot_length: int
    shared: Tensor | None = None
    offsets: Tensor | None = None

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, special: Special | None
    ) -> Tensor:
        if special is not None:
            raise UnsupportedAttention("a static pass has no windows, capped scores or sinks")
        attended: Tensor = slot_attention(
            query[0],
            key[0],
            value[0],
            self.keys,
            self.values,
            layer,
            self.slots,
            self.positions,
            self.slot_length,
            scaling,
            self.shared,
            self.offsets,
        )
        return attended[None]
