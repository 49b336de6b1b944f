"""Key-value memory in slots, allocated once: one slot a sequence, truncated by simply remembering a shorter length."""

from __future__ import annotations

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

    `keys[layer]` is [num_slots, key_value_heads, slot_length, key_dim], `values[layer]` the same with value_dim.
    The memory starts zeroed: attention over a padded length multiplies masked values by exact zeros, which only
    finite memory keeps harmless.
    """

    def __init__(
        self, shape: CacheShape, num_slots: int, slot_length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        self.num_slots = num_slots
        self.slot_length = slot_length
        size = (shape.layers, num_slots, shape.key_value_heads, slot_length)
        self.keys = torch.zeros(*size, shape.key_dim, dtype=dtype, device=device)
        self.values = torch.zeros(*size, shape.value_dim, dtype=dtype, device=device)

    def write(self, layer: int, slot: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Store [heads, n, dim] keys and values of one layer at positions start, start + 1, …"""
        end = start + keys.shape[1]
        self.keys[layer, slot, :, start:end] = keys
        self.values[layer, slot, :, start:end] = values

    def write_all_layers(self, slot: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Store [layers, heads, n, dim] keys and values at positions start, start + 1, …"""
        end = start + keys.shape[2]
        self.keys[:, slot, :, start:end] = keys
        self.values[:, slot, :, start:end] = values

    def copy(self, source: int, target: int, length: int) -> None:
        """Make positions [0, length) of slot `target` those of slot `source`."""
        if source != target:
            self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
            self.values[:, target, :, :length] = self.values[:, source, :, :length]
