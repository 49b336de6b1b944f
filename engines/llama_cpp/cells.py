"""Which sequence holds what in llama.cpp's memory, with every sequence's cells in the order of its positions.

llama.cpp puts a token into the first free cell that it comes to, and attention sums over keys in the order of cells:
after a rejected draft or an evicted sequence a later token may land in front of an earlier one, and its logits would
have other last bits. So nothing is freed at once. What a sequence gives up goes to a sequence of its own, and when that
has grown, or no cell is left, all sequences are written out and read back one behind the other.

A pass looks at every cell up to the last one in use, whoever's it is: 2,000 tokens of other sequences made a small
model's pass of one row a twentieth slower, without bitwise mode a third. So what has not been used for some passes is
parked outside and read back when it is wanted again.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.llama_cpp.context import Context

_LEAST_WASTE = 512
# Slots are parked that have not been in a pass for so long, while so many tokens of others were fed, once they hold so
# many tokens together, and half as many as the others: writing them out and in takes as long as some hundred rows lose
# by them.
_IDLE_SECONDS = 1.0
_IDLE_ROWS = 128
_LEAST_IDLE = 256
_MOST_PARKED = 4
"""At most a quarter of the cells: parked tokens take memory beside those that are allocated."""


class Cells:
    """Sequences 0 to `num_slots` - 1 are slots; the last one that llama.cpp has collects what was given up, the one
    before it, `spare`, is for tokens of no meaning; those between are free for branches.

    `ordered` False frees cells at once.
    """

    def __init__(
        self,
        context: Context,
        num_slots: int,
        *,
        ordered: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api: Any = context.api
        self._context = context
        self._ordered = ordered
        self._waste = int(self._api.llama_max_parallel_sequences()) - 1
        self.spare = self._waste - 1
        self.lengths = [0] * num_slots
        self.compactions = 0
        self._used = 0
        self._parked: dict[int, NDArray[np.uint8]] = {}
        self._clock = clock
        self._rows = 0
        self._last_use = [(0.0, 0)] * num_slots

    def branches(self) -> range:
        """Sequences that are unused between passes."""
        return range(len(self.lengths), self.spare)

    @property
    def parked(self) -> Collection[int]:
        """The slots whose keys and values lie outside."""
        return self._parked.keys()

    def hold(self, slot: int) -> None:
        """The slot is in use: have its cells in the context if they were parked."""
        self._last_use[slot] = self._clock(), self._rows
        if slot not in self._parked:
            return
        if self._used + self.lengths[slot] > self._context.num_cells or not self._ordered:
            self._compact()  # so that there are free cells one behind the other
        self._restore(self._parked.pop(slot), slot)
        self._used += self.lengths[slot]

    def make_room(self, tokens: int) -> None:
        """Make room before `tokens` more are decoded. Raises ValueError if they never fit."""
        live = self._live()
        if live + tokens > self._context.num_cells:
            raise ValueError(f"{live} + {tokens} tokens exceed the {self._context.num_cells} there is memory for")
        wasted = self._used - live  # too low if slots share cells
        idle = self._idle(live)
        full = self._ordered and (self._used + tokens > self._context.num_cells or wasted > max(_LEAST_WASTE, live))
        if full or idle:
            self._compact(idle)

    def fed(self, tokens: int) -> None:
        """So many tokens were decoded, or may have been."""
        self._used += tokens
        self._rows += tokens

    def cut(self, slot: int, length: int) -> None:
        """Forget what the slot holds from `length` on."""
        if not length and self._parked.pop(slot, None) is not None:
            self.lengths[slot] = 0
        if self.lengths[slot] > length:
            self.hold(slot)
            self.give_up(slot, length)
            self.lengths[slot] = length

    def give_up(self, sequence: int, start: int) -> None:
        """A sequence gives up its cells from a position on."""
        memory = self._context.memory
        if self._ordered:
            self._api.llama_memory_seq_cp(memory, sequence, self._waste, start, -1)
        if not self._api.llama_memory_seq_rm(memory, sequence, start, -1):
            raise RuntimeError(f"llama.cpp could not cut sequence {sequence} back to {start} tokens")

    def share(self, source: int, target: int, start: int, stop: int) -> None:
        """The target sequence, which holds nothing there, gets the source's cells of these positions as well."""
        if stop > start:
            self._api.llama_memory_seq_cp(self._context.memory, source, target, start, stop)

    def fill(self, slot: int, branch: int) -> None:
        """As many cells as the slot's, taken by a copy of it that is never attended to, until `forget_all`.

        For trials over many cells. Not counted as waste, or they would be given back.
        """
        self._restore(self._save(slot), branch)

    def forget_all(self) -> None:
        self._api.llama_memory_clear(self._context.memory, False)
        self.lengths = [0] * len(self.lengths)
        self._parked.clear()
        self._used = 0

    def _live(self) -> int:
        return sum(length for slot, length in enumerate(self.lengths) if slot not in self._parked)

    def _idle(self, live: int) -> list[int]:
        """The slots to park now."""
        if all(
            self._rows - rows < _IDLE_ROWS or not self.lengths[slot] for slot, (_, rows) in enumerate(self._last_use)
        ):
            return []  # for most tokens
        room = self._context.num_cells // _MOST_PARKED - sum(self.lengths[slot] for slot in self._parked)
        found, tokens = [], 0
        now = self._clock()
        for slot in sorted(range(len(self.lengths)), key=self._last_use.__getitem__):
            length, (at, rows) = self.lengths[slot], self._last_use[slot]
            long_ago = now - at > _IDLE_SECONDS and self._rows - rows >= _IDLE_ROWS
            if length and slot not in self._parked and long_ago and tokens + length <= room:
                found.append(slot)
                tokens += length
        return found if tokens >= max(_LEAST_IDLE, (live - tokens) // 2) else []

    def _compact(self, park: Collection[int] = ()) -> None:
        """Write all sequences out and read them back in order, but for those to park."""
        self.compactions += 1
        held = [slot for slot, length in enumerate(self.lengths) if length and slot not in self._parked]
        saved = {slot: self._save(slot) for slot in held}
        self._api.llama_memory_clear(self._context.memory, False)
        self._used = 0
        for slot, state in saved.items():
            if slot in park:
                self._parked[slot] = state
            else:
                self._restore(state, slot)
                self._used += self.lengths[slot]

    def _save(self, slot: int) -> NDArray[np.uint8]:
        state = np.empty(int(self._api.llama_state_seq_get_size(self._context.pointer, slot)), dtype=np.uint8)
        if int(self._api.llama_state_seq_get_data(self._context.pointer, _bytes(state), len(state), slot)) != len(
            state
        ):
            raise RuntimeError("llama.cpp could not write out its keys and values")
        return state

    def _restore(self, state: NDArray[np.uint8], sequence: int) -> None:
        if not self._api.llama_state_seq_set_data(self._context.pointer, _bytes(state), len(state), sequence):
            raise RuntimeError("llama.cpp could not read back the keys and values that it wrote")


def _bytes(array: NDArray[np.uint8]) -> Any:
    return (ctypes.c_uint8 * len(array)).from_buffer(array.data)
