"""Key-value memory in slots, allocated once: one slot a sequence, truncated by simply remembering a shorter length."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer stores for one token."""

    key_value_heads: int
    key_dim: int
    value_dim: int

    @property
    def numbers(self) -> int:
        return self.key_value_heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What the layers that have keys and values store for one token, by the layer's number."""

    layers: dict[int, LayerShape]

    @classmethod
    def uniform(cls, layers: int, key_value_heads: int, key_dim: int, value_dim: int) -> CacheShape:
        return cls(dict.fromkeys(range(layers), LayerShape(key_value_heads, key_dim, value_dim)))

    @property
    def is_uniform(self) -> bool:
        """Whether every layer, from 0 on, stores the same."""
        return len(set(self.layers.values())) == 1 and [*self.layers] == [*range(len(self.layers))]

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of keys and values that one token takes, all layers together."""
        return sum(layer.numbers for layer in self.layers.values()) * dtype.itemsize


class KeyValueCache:
    """Keys and values of `num_slots` sequences of up to `slot_length` tokens.

    Layer by layer [num_slots · slot_length, key_value_heads, dim]: token by token, so that whatever a pass computes for
    all its sequences is scattered by one index, and a prefix is one block. The memory starts zeroed: attention over a
    padded length multiplies masked values by exact zeros, which only finite memory keeps harmless.
    """

    def __init__(
        self, shape: CacheShape, num_slots: int, slot_length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        self.num_slots = num_slots
        self.slot_length = slot_length
        self.device = device
        places = num_slots * slot_length
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._whole: tuple[Tensor, Tensor] | None = None
        if shape.is_uniform:
            layers, layer = len(shape.layers), shape.layers[0]
            keys = _zeros((layers, places, layer.key_value_heads, layer.key_dim), dtype, device)
            values = _zeros((layers, places, layer.key_value_heads, layer.value_dim), dtype, device)
            self._whole = keys, values
            self._keys, self._values = dict(enumerate(keys)), dict(enumerate(values))
            return
        for index, layer in shape.layers.items():
            self._keys[index] = _zeros((places, layer.key_value_heads, layer.key_dim), dtype, device)
            self._values[index] = _zeros((places, layer.key_value_heads, layer.value_dim), dtype, device)

    @property
    def keys(self) -> Tensor:
        """[layers, num_slots · slot_length, key_value_heads, key_dim], where all layers are alike."""
        return self._uniform[0]

    @property
    def values(self) -> Tensor:
        """The same with value_dim."""
        return self._uniform[1]

    @property
    def _uniform(self) -> tuple[Tensor, Tensor]:
        if self._whole is None:
            raise ValueError("the layers differ in the shape of their keys and values")
        return self._whole

    def places(self, slot: int, start: int, count: int) -> range:
        """Where positions start, start + 1, … of a slot lie on a layer's first axis."""
        first = slot * self.slot_length + start
        return range(first, first + count)

    def write(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store [n, heads, dim] keys and values of one layer at `places` [n]."""
        self._keys[layer].index_copy_(0, places, keys)
        self._values[layer].index_copy_(0, places, values)

    def read(self, layer: int, slot: int, low: int, length: int) -> tuple[Tensor, Tensor]:
        """Views [1, heads, length - low, dim] of a slot's keys and values at positions [low, length)."""
        first = slot * self.slot_length
        keys = self._keys[layer][first + low : first + length].transpose(0, 1)
        values = self._values[layer][first + low : first + length].transpose(0, 1)
        return keys[None], values[None]

    def copy(self, source: int, target: int, length: int) -> None:
        """Make positions [0, length) of slot `target` those of slot `source`."""
        if source == target:
            return
        from_, to = source * self.slot_length, target * self.slot_length
        for held in self._whole or (*self._keys.values(), *self._values.values()):
            places = held.movedim(-3, 0)
            places[to : to + length] = places[from_ : from_ + length]


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On CPU, pages that the kernel zeroes as they are first used: torch.zeros would write, and so occupy, them all."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(size) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(size)
