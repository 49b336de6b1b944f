"""Key-value memory in slots, allocated once: one slot a sequence, truncated by simply remembering a shorter length."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one layer stores for one token."""

    layers: int
    key_value_heads: int
    key_dim: int
    value_dim: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of keys and values that one token takes, all layers together."""
        return self.layers * self.key_value_heads * (self.key_dim + self.value_dim) * dtype.itemsize


class KeyValueCache:
    """Keys and values of `num_slots` sequences of up to `slot_length` tokens.

    `keys` is [layers, num_slots · slot_length, key_value_heads, key_dim], `values` the same with value_dim: token by
    token, so that whatever a pass computes for all its sequences is scattered by one index, and a prefix is one block.
    The memory starts zeroed: attention over a padded length multiplies masked values by exact zeros, which only
    finite memory keeps harmless.
    """

    def __init__(
        self, shape: CacheShape, num_slots: int, slot_length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        self.num_slots = num_slots
        self.slot_length = slot_length
        size = (shape.layers, num_slots * slot_length, shape.key_value_heads)
        self.keys = _zeros((*size, shape.key_dim), dtype, device)
        self.values = _zeros((*size, shape.value_dim), dtype, device)

    def places(self, slot: int, start: int, count: int) -> range:
        """Where positions start, start + 1, … of a slot lie on the second axis."""
        first = slot * self.slot_length + start
        return range(first, first + count)

    def write(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store [n, heads, dim] keys and values of one layer at `places` [n]."""
        self.keys[layer].index_copy_(0, places, keys)
        self.values[layer].index_copy_(0, places, values)

    def read(self, layer: int, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """Views [1, heads, length, dim] of the first `length` keys and values of a slot."""
        first = slot * self.slot_length
        keys = self.keys[layer, first : first + length].transpose(0, 1)
        values = self.values[layer, first : first + length].transpose(0, 1)
        return keys[None], values[None]

    def write_all_layers(self, slot: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Store [layers, n, heads, dim] keys and values at positions start, start + 1, …"""
        first = slot * self.slot_length + start
        self.keys[:, first : first + keys.shape[1]] = keys
        self.values[:, first : first + values.shape[1]] = values

    def copy(self, source: int, target: int, length: int) -> None:
        """Make positions [0, length) of slot `target` those of slot `source`."""
        if source != target:
            from_, to = source * self.slot_length, target * self.slot_length
            self.keys[:, to : to + length] = self.keys[:, from_ : from_ + length]
            self.values[:, to : to + length] = self.values[:, from_ : from_ + length]


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On CPU, pages that the kernel zeroes as they are first used: torch.zeros would write, and so occupy, them all."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(size) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(size)
