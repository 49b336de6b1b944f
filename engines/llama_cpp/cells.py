"""Which sequence holds what in llama.cpp's memory, with every sequence's cells in the order of its positions.

llama.cpp puts a token into the first free cell that it comes to, and attention sums over keys in the order of cells:
after a rejected draft or an evicted sequence a later token may land in front of an earlier one, and its logits would
have other last bits. So nothing is freed at once. What a sequence gives up goes to a sequence of its own, and when that
has grown, or no cell is left, all sequences are written out and read back one behind the other.
"""

from __future__ import annotations

import ctypes
from typing import Any

from engines.llama_cpp.context import Context

_LEAST_WASTE = 512


class Cells:
    """Sequences 0 to `num_slots` - 1 are slots; the last one that llama.cpp has collects what was given up; those
    between are free for branches.

    `ordered` False frees cells at once.
    """

    def __init__(self, context: Context, num_slots: int, *, ordered: bool = True) -> None:
        self._api: Any = context.api
        self._context = context
        self._ordered = ordered
        self._waste = int(self._api.llama_max_parallel_sequences()) - 1
        self.lengths = [0] * num_slots
        self.compactions = 0
        self._used = 0

    def branches(self) -> range:
        """Sequences that are unused between passes."""
        return range(len(self.lengths), self._waste)

    def make_room(self, tokens: int) -> None:
        """Make room before `tokens` more are decoded. Raises ValueError if they never fit."""
        live = sum(self.lengths)
        if live + tokens > self._context.num_cells:
            raise ValueError(f"{live} + {tokens} tokens exceed the {self._context.num_cells} there is memory for")
        wasted = self._used - live  # too low if slots share cells
        if self._ordered and (self._used + tokens > self._context.num_cells or wasted > max(_LEAST_WASTE, live)):
            self._compact()

    def fed(self, tokens: int) -> None:
        """So many tokens were decoded, or may have been."""
        self._used += tokens

    def cut(self, slot: int, length: int) -> None:
        """Forget what the slot holds from `length` on."""
        if self.lengths[slot] > length:
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
        self._used = 0

    def _compact(self) -> None:
        self.compactions += 1
        held = [slot for slot, length in enumerate(self.lengths) if length]
        saved = {slot: self._save(slot) for slot in held}
        self._api.llama_memory_clear(self._context.memory, False)
        self._used = 0
        for slot, state in saved.items():
            self._restore(state, slot)
            self._used += self.lengths[slot]

    def _save(self, slot: int) -> Any:
        size = int(self._api.llama_state_seq_get_size(self._context.pointer, slot))
        state = (ctypes.c_uint8 * size)()
        if int(self._api.llama_state_seq_get_data(self._context.pointer, state, size, slot)) != size:
            raise RuntimeError("llama.cpp could not write out its keys and values")
        return state

    def _restore(self, state: Any, sequence: int) -> None:
        if not self._api.llama_state_seq_set_data(self._context.pointer, state, len(state), sequence):
            raise RuntimeError("llama.cpp could not read back the keys and values that it wrote")
