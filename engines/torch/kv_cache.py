"""Key-value memory in slots, allocated once: one slot a sequence, truncated by simply remembering a shorter length."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

SPARE = 256
"""Tokens before a window that a slot holds at least, so that going back over rejected drafts costs nothing; and about
as many may come in one pass."""
WINDOW_SNAPSHOTS = 2
"""Of a slot's windows, for going back further."""

Span = tuple[int, int, int]
"""Tokens of a sequence: its slot, the first one's position, how many."""


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
class Stretch:
    """How much of a sequence a slot holds in layers with a window: a stretch of it that moves on, not a ring, so that
    attention reads it in one piece.

    `window` is the widest of the layers'; `bucket` as in engines.torch.batch.BatchBuilder.
    """

    window: int
    spare: int = SPARE
    bucket: int = 1

    @property
    def room(self) -> int:
        """The most tokens of a sequence that one pass may bring."""
        return self.spare + self.spare // 4

    @property
    def back(self) -> int:
        """Tokens that stay in front of the window when the stretch moves on."""
        return self._padded(self.spare)

    @property
    def places(self) -> int:
        """Tokens that a slot holds."""
        return self._padded(self.window + self.back + self.room + 2 * (self.bucket - 1))

    @property
    def most_places(self) -> int:
        """Tokens that a slot takes memory for, snapshots included."""
        return self.places + WINDOW_SNAPSHOTS * self._padded(self.window + 2 * (self.bucket - 1))

    def lowest(self, position: int) -> int:
        """The first position that a token at `position`, or one after it, reads."""
        oldest = position // self.bucket * self.bucket - self.window + 1
        return max(0, oldest) // self.bucket * self.bucket

    def begins(self, start: int) -> int:
        """Where the stretch moves to for tokens from `start` on."""
        return max(0, self.lowest(start) - self.back)

    def _padded(self, count: int) -> int:
        return -(-count // self.bucket) * self.bucket


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What the layers that have keys and values store for one token, by the layer's number.

    The layers `windowed` hold a `stretch` of a sequence, the others all of it.
    """

    layers: dict[int, LayerShape]
    windowed: frozenset[int] = frozenset()
    stretch: Stretch | None = None

    @classmethod
    def uniform(cls, layers: int, key_value_heads: int, key_dim: int, value_dim: int) -> CacheShape:
        return cls(dict.fromkeys(range(layers), LayerShape(key_value_heads, key_dim, value_dim)))

    def with_windows(
        self, windows: Mapping[int, int | None], slot_length: int, *, spare: int = SPARE, bucket: int = 1
    ) -> CacheShape:
        """The same, with layers of these windows (None: a token sees everything) that hold no more than they need; for
        sequences of up to `slot_length` tokens. Where that would save less than a quarter they hold everything."""
        narrow = {layer: window for layer, window in windows.items() if window is not None and window < slot_length}
        if not narrow:
            return self
        stretch = Stretch(max(narrow.values()), spare, bucket)
        if 4 * stretch.most_places > 3 * slot_length:
            return self
        return CacheShape(self.layers, frozenset(narrow), stretch)

    @property
    def is_uniform(self) -> bool:
        """Whether every layer, from 0 on, stores the same."""
        alike = len(set(self.layers.values())) == 1 and [*self.layers] == [*range(len(self.layers))]
        return alike and not self.windowed

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of keys and values that one token takes in the layers that hold all of a sequence."""
        whole = [shape for layer, shape in self.layers.items() if layer not in self.windowed]
        return sum(shape.numbers for shape in whole) * dtype.itemsize

    def window_bytes(self, dtype: torch.dtype) -> int:
        """Bytes that a slot takes in the layers that hold a stretch, snapshots included."""
        if self.stretch is None:
            return 0
        numbers = sum(self.layers[layer].numbers for layer in self.windowed)
        return self.stretch.most_places * numbers * dtype.itemsize

    def slot_bytes(self, slot_length: int, dtype: torch.dtype) -> int:
        """Bytes of one slot."""
        return slot_length * self.bytes_per_token(dtype) + self.window_bytes(dtype)


@dataclass(frozen=True, slots=True)
class Places:
    """Where tokens lie on a layer's first axis: of layers that hold everything, and of those that hold a stretch."""

    whole: Tensor
    windowed: Tensor | None


@dataclass(frozen=True, slots=True)
class WindowSnapshot:
    """What windowed layers hold for the tokens from `low` up to `position`, by layer. Never written to, so that slots
    may share it."""

    position: int
    low: int
    held: Mapping[int, tuple[Tensor, Tensor]]


class KeyValueCache:
    """Keys and values of `num_slots` sequences of up to `slot_length` tokens.

    Layer by layer [num_slots · slot_length, key_value_heads, dim]: token by token, so that whatever a pass computes for
    all its sequences is scattered by one index, and a prefix is one block. Of windowed layers (`CacheShape.stretch`) a
    slot has fewer places, the first of them that of position `bases[slot]`. The memory starts zeroed: attention over a
    padded length multiplies masked values by exact zeros, which only finite memory keeps harmless.

    Where all layers are alike there are `apart` places behind those of the slots, for tokens that belong to none: from
    `first_apart` on.
    """

    def __init__(
        self,
        shape: CacheShape,
        num_slots: int,
        slot_length: int,
        dtype: torch.dtype,
        device: torch.device,
        apart: int = 0,
    ) -> None:
        self.shape = shape
        self.num_slots = num_slots
        self.slot_length = slot_length
        self.device = device
        self.bases = [0] * num_slots
        self.apart = apart if shape.is_uniform else 0
        self.first_apart = num_slots * slot_length
        self._stretch = shape.stretch.places if shape.stretch is not None else 0
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._whole: tuple[Tensor, Tensor] | None = None
        if shape.is_uniform:
            layers, layer, places = len(shape.layers), shape.layers[0], self.first_apart + apart
            keys = _zeros((layers, places, layer.key_value_heads, layer.key_dim), dtype, device)
            values = _zeros((layers, places, layer.key_value_heads, layer.value_dim), dtype, device)
            self._whole = keys, values
            self._keys, self._values = dict(enumerate(keys)), dict(enumerate(values))
            return
        for index, layer in shape.layers.items():
            places = num_slots * (self._stretch if index in shape.windowed else slot_length)
            self._keys[index] = _zeros((places, layer.key_value_heads, layer.key_dim), dtype, device)
            self._values[index] = _zeros((places, layer.key_value_heads, layer.value_dim), dtype, device)

    @property
    def keys(self) -> Tensor:
        """[layers, num_slots · slot_length + apart, key_value_heads, key_dim], where all layers are alike."""
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

    def places(self, spans: Sequence[Span]) -> Places:
        """Where the tokens of `spans`, one span behind the other, lie."""
        whole = self._index((slot * self.slot_length + start, count) for slot, start, count in spans)
        if not self._stretch:
            return Places(whole, None)
        firsts = ((slot * self._stretch + start - self.bases[slot], count) for slot, start, count in spans)
        return Places(whole, self._index(firsts))

    def write(self, layer: int, places: Places, keys: Tensor, values: Tensor) -> None:
        """Store [n, heads, dim] keys and values of one layer at `places`."""
        index = places.whole
        if places.windowed is not None and layer in self.shape.windowed:
            index = places.windowed
        self._keys[layer].index_copy_(0, index, keys)
        self._values[layer].index_copy_(0, index, values)

    def read(self, layer: int, slot: int, low: int, length: int) -> tuple[Tensor, Tensor]:
        """Views [1, heads, length - low, dim] of a slot's keys and values at positions [low, length)."""
        first = slot * self.slot_length
        if layer in self.shape.windowed:
            first = slot * self._stretch - self.bases[slot]
        keys = self._keys[layer][first + low : first + length].transpose(0, 1)
        values = self._values[layer][first + low : first + length].transpose(0, 1)
        return keys[None], values[None]

    def copy(self, source: int, target: int, length: int) -> None:
        """Make positions [0, length) of slot `target` those of slot `source`, but for windowed layers."""
        if source == target:
            return
        from_, to = source * self.slot_length, target * self.slot_length
        for held in self._whole or self._held(self.shape.layers.keys() - self.shape.windowed):
            places = held.movedim(-3, 0)
            places[to : to + length] = places[from_ : from_ + length]

    # What follows is of windowed layers alone.

    def move_on(self, slot: int, base: int, end: int) -> None:
        """Have a slot's stretch begin at `base`; what it holds from there up to `end` stays."""
        first = slot * self._stretch
        by = base - self.bases[slot]
        for held in self._held(self.shape.windowed):
            held[first : first + end - base] = held[first + by : first + by + end - base].clone()
        self.bases[slot] = base

    def copy_stretch(self, source: int, target: int, end: int) -> None:
        """Make a slot's stretch that of another one, up to position `end`."""
        count = end - self.bases[source]
        from_, to = source * self._stretch, target * self._stretch
        for held in self._held(self.shape.windowed):
            held[to : to + count] = held[from_ : from_ + count]
        self.bases[target] = self.bases[source]

    def take(self, slot: int, low: int, position: int) -> WindowSnapshot:
        """A copy of what a slot holds at [low, position)."""
        first = slot * self._stretch - self.bases[slot]
        places = slice(first + low, first + position)
        held = {
            layer: (self._keys[layer][places].clone(), self._values[layer][places].clone())
            for layer in self.shape.windowed
        }
        return WindowSnapshot(position, low, held)

    def put_back(self, slot: int, snapshot: WindowSnapshot | None) -> None:
        """Have a slot hold this and nothing else; None: nothing."""
        self.bases[slot] = 0
        if snapshot is None:
            return
        self.bases[slot] = snapshot.low
        first = slot * self._stretch
        places = slice(first, first + snapshot.position - snapshot.low)
        for layer, (keys, values) in snapshot.held.items():
            self._keys[layer][places] = keys
            self._values[layer][places] = values

    def _held(self, layers: Iterable[int]) -> list[Tensor]:
        return [held for layer in layers for held in (self._keys[layer], self._values[layer])]

    def _index(self, runs: Iterable[tuple[int, int]]) -> Tensor:
        places = [*chain.from_iterable(range(first, first + count) for first, count in runs)]
        return torch.tensor(places, dtype=torch.long, device=self.device)


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On CPU, pages that the kernel zeroes as they are first used: torch.zeros would write, and so occupy, them all."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(size) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(size)
