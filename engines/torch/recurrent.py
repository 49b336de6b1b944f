"""Layers that remember a sequence in a state of fixed size (linear attention, state spaces, short convolutions).

Keys and values are cut back by forgetting the last of them; a state can't be. So every slot keeps a few snapshots of
its states, at positions that a sequence is likely to go back to: in a verification behind the last token that is
certain, in a prompt behind each chunk. To go back is to restore the last snapshot before the position and to feed the
tokens from there on again, in the same pass as what is new. The layers themselves are transformers' own: each is called
once for every sequence of a pass, with that sequence's states in a cache of transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from engines.runtime.rows import Row
from engines.torch.snapshots import latest, with_snapshot

_STEPWISE = {"falcon_mamba", "jamba", "mamba"}
"""Whose code in transformers forgets its state where several tokens follow it (as of 5.19), so that it gets them one by
one, but for a sequence's first."""
SNAPSHOTS = 4
"""Kept of each slot."""
_PLAIN_STEPS = 16
"""So many tokens drawn one by one may have to be fed again."""

States = dict[tuple[int, str, int], Tensor]
"""By layer, kind ("conv" or "recurrent") and number."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The states after `position` tokens. The tensors are never written to, so that slots may share them."""

    position: int
    states: States


@dataclass(slots=True)
class _SlotStates:
    """What one slot holds: states after the first `position` of `ids`."""

    cache: Any
    ids: list[int] = field(default_factory=list)
    position: int = 0
    snapshots: list[Snapshot] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Part:
    """Tokens [offset, offset + count) of a pass are `slot`'s; after the first `mark` of them a snapshot is taken."""

    slot: int
    offset: int
    count: int
    mark: int | None


class RecurrentLayers:
    """The recurrent layers of a model, which is changed in place, and their states for `num_slots` sequences."""

    def __init__(self, model: Any, num_slots: int) -> None:
        self._config = model.config
        self._stepwise = model.config.get_text_config().model_type in _STEPWISE
        self._slots = [_SlotStates(self._new_cache()) for _ in range(num_slots)]
        self._parts: list[_Part] | None = None
        self._taken: dict[int, States] = {}
        self.layers = sorted(self._wrap(module, parameter) for module, parameter in recurrent_modules(model))

    def begin(self, rows: Sequence[Row]) -> list[Row]:
        """The rows, each lengthened in front by what its slot's states have to be brought up to date with.

        Raises:
            ValueError: if a row is a tree, or begins behind what its slot holds.
        """
        for index, row in enumerate(rows):
            if row.parents is not None:
                raise ValueError(f"rows[{index}]: a model with recurrent layers takes no trees")
            if row.start > len(self._slots[row.slot].ids):
                raise ValueError(f"rows[{index}]: slot {row.slot} holds {len(self._slots[row.slot].ids)} tokens")
        return [self._rewound(row) for row in rows]

    def plan(self, rows: Sequence[Row]) -> None:
        """Say what the next pass holds: `begin`'s rows, or first parts of them."""
        parts, offset = [], 0
        for row in rows:
            count = len(row.token_ids)
            if count:
                parts.append(_Part(row.slot, offset, count, self._mark(row)))
            offset += count
        self._parts = parts

    def end(self, rows: Sequence[Row]) -> None:
        """The planned pass is done."""
        for part, row in zip(self._parts or [], (row for row in rows if row.token_ids), strict=True):
            slot = self._slots[part.slot]
            slot.ids[row.start :] = row.token_ids
            slot.position = row.start + part.count
            if part.slot in self._taken and part.mark is not None:
                self._keep(slot, Snapshot(row.start + part.mark, self._taken[part.slot]))
        self._parts = None
        self._taken = {}

    def abandon(self, rows: Sequence[Row]) -> None:
        """The planned pass failed midway: what its slots hold is nothing that can be relied on."""
        self._parts = None
        self._taken = {}
        for row in rows:
            self._restore(self._slots[row.slot], None)

    def copy(self, source: int, target: int, length: int) -> None:
        """Make the first `length` tokens of slot `target` those of `source`, as far as snapshots reach."""
        if source == target:
            return
        there, here = self._slots[source], self._slots[target]
        if 0 < there.position <= length:
            self._keep(there, Snapshot(there.position, _states(there.cache)))
        here.ids = there.ids[:length]
        here.snapshots = [snapshot for snapshot in there.snapshots if snapshot.position <= length]
        self._restore(here, latest(here.snapshots, length))

    def reusable(self, slot: int, length: int) -> int:
        """Up to where the first `length` tokens of a slot need not be fed again."""
        held = self._slots[slot]
        if held.position <= length:
            return held.position
        snapshot = latest(held.snapshots, length)
        return 0 if snapshot is None else snapshot.position

    def bytes(self) -> int:
        """What all states and snapshots take now; a tensor that several slots share counts once."""
        held = [_tensors(slot.cache) for slot in self._slots]
        held += [list(snapshot.states.values()) for slot in self._slots for snapshot in slot.snapshots]
        return sum({id(tensor): tensor.nbytes for tensors in held for tensor in tensors}.values())

    def _rewound(self, row: Row) -> Row:
        slot = self._slots[row.slot]
        slot.snapshots = [snapshot for snapshot in slot.snapshots if snapshot.position <= row.start]
        if slot.position > row.start:
            self._restore(slot, latest(slot.snapshots, row.start))
        again = slot.ids[slot.position : row.start]
        return replace(
            row,
            start=slot.position,
            token_ids=[*again, *row.token_ids],
            logits_from=len(again) + row.logits_from,
        )

    def _mark(self, row: Row) -> int | None:
        """After how many of the row's tokens a snapshot is worth its memory."""
        count = len(row.token_ids)
        certain = min(row.logits_from + 1, count)
        newest = max((snapshot.position for snapshot in self._slots[row.slot].snapshots), default=0)
        if certain == count == 1 and row.start + count - newest < _PLAIN_STEPS:
            return None
        return certain

    def _keep(self, slot: _SlotStates, snapshot: Snapshot) -> None:
        slot.snapshots = with_snapshot(slot.snapshots, snapshot, SNAPSHOTS)

    def _restore(self, slot: _SlotStates, snapshot: Snapshot | None) -> None:
        """None: as before the first token."""
        slot.cache = self._new_cache()
        if snapshot is None:
            slot.position = 0
            return
        slot.position = snapshot.position
        for (layer, kind, number), tensor in snapshot.states.items():
            held = slot.cache.layers[layer]
            if kind == "conv":
                held.lazy_initialization(conv_states=tensor, state_idx=number)
                held.conv_states[number].copy_(tensor)
            else:
                held.lazy_initialization(recurrent_states=tensor, state_idx=number)
                held.recurrent_states[number].copy_(tensor)
            held.has_previous_state[number] = True

    def _new_cache(self) -> Any:
        return DynamicCache(config=self._config)

    def _wrap(self, module: Any, parameter: str) -> int:
        """Have the module run once for each sequence; returns its layer."""
        layer: int = module.layer_idx
        own: Callable[..., Tensor] = module.forward

        def run(hidden_states: Tensor, cache: Any) -> list[Tensor]:
            step = 1 if self._stepwise and cache.has_previous_state(layer) else hidden_states.shape[1]
            return [own(part, **{parameter: cache}) for part in torch.split(hidden_states, step, dim=1)]

        def forward(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
            if self._parts is None:
                return own(hidden_states)
            outputs = []
            for part in self._parts:
                cache = self._slots[part.slot].cache
                whole = hidden_states[:, part.offset : part.offset + part.count]
                mark = part.count if part.mark is None else part.mark
                outputs += run(whole[:, :mark], cache)
                if part.mark is not None:
                    self._taken.setdefault(part.slot, {}).update(_layer_states(layer, cache.layers[layer]))
                if mark < part.count:
                    outputs += run(whole[:, mark:], cache)
            return torch.cat(outputs, dim=1)

        module.forward = forward
        return layer


def recurrent_modules(model: nn.Module) -> list[tuple[Any, str]]:
    """The modules with a state of their own, each with the parameter that its cache comes by."""
    found = []
    for module in model.modules():
        if not hasattr(module, "layer_idx") or not any(isinstance(child, nn.Conv1d) for child in module.children()):
            continue
        names = inspect.signature(module.forward).parameters
        parameter = next((name for name in ("cache_params", "past_key_values") if name in names), None)
        if parameter is not None:
            found.append((module, parameter))
    return found


def _states(cache: Any) -> States:
    states: States = {}
    for layer, held in enumerate(cache.layers):
        if hasattr(held, "conv_states"):
            states.update(_layer_states(layer, held))
    return states


def _tensors(cache: Any) -> list[Tensor]:
    layers = [held for held in cache.layers if hasattr(held, "conv_states")]
    found = [tensor for held in layers for tensor in (*held.conv_states.values(), *held.recurrent_states.values())]
    return [tensor for tensor in found if tensor is not None]


def _layer_states(layer: int, held: Any) -> States:
    states: States = {}
    for kind, tensors in (("conv", held.conv_states), ("recurrent", held.recurrent_states)):
        for number, tensor in tensors.items():
            if tensor is not None:
                states[layer, kind, number] = tensor.clone()
    return states
