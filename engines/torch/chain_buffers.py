"""What a chain's static passes read and write: tensors on the device, filled by one copy, read back by another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engines.runtime.runner import ChainRow
from engines.sampling.static import StaticRows, describe

_ROW_FIELDS = 5
_SEQUENCE_FIELDS = 11
_REAL_FIELDS = 3
LONGEST_APART = 16
"""Tokens that a chain which is apart feeds and draws."""


class ChainBuffers:
    """Room for `max_rows` tokens of context and `max_sequences` sequences of `max_steps` drawn tokens.

    int64 all of them: `tokens`, `positions`, `slots`, `shared` and `offsets` (slot_attention.py) [max_rows] of the
    context's tail; `last`, the index there of each sequence's last, `sequence_slots`, `next_positions`, of the token to
    be drawn, `sequence_shared`, `sequence_offsets`, and `longest`, the last position that a sequence has a place for,
    [max_sequences]; `drawn`, the latest token; `found` [max_steps, 3, max_sequences]: tokens, whether their draw was
    sure, and the runners-up.

    Slots have `slot_length` places. Sequences that are apart get LONGEST_APART places each, from `first_apart` on.
    """

    def __init__(
        self,
        max_rows: int,
        max_sequences: int,
        max_steps: int,
        device: torch.device,
        slot_length: int,
        first_apart: int,
    ) -> None:
        self._slot_length = slot_length
        self._first_apart = first_apart
        pinned = device.type == "cuda"
        size = _ROW_FIELDS * max_rows + _SEQUENCE_FIELDS * max_sequences
        self._host = torch.zeros(size, dtype=torch.int64, pin_memory=pinned)
        self._device = torch.zeros(size, dtype=torch.int64, device=device)
        # Filled as numpy arrays: making tensors of lists takes three times as long.
        host_rows, host_sequences = self._split(self._host, max_rows, max_sequences)
        self._host_rows, self._host_whole = host_rows.numpy(), host_sequences[:-_REAL_FIELDS].numpy()
        self._host_real = host_sequences[-_REAL_FIELDS:].view(torch.float64).numpy()
        rows, self._sequences = self._split(self._device, max_rows, max_sequences)
        self.tokens, self.positions, self.slots, self.shared, self.offsets = rows.unbind()
        self.last, self.sequence_slots, self.next_positions = self._sequences[:3].unbind()
        self.sequence_shared, self.sequence_offsets, self.longest = self._sequences[3:6].unbind()
        self.drawn = torch.zeros(max_sequences, dtype=torch.int64, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.found = torch.zeros(max_steps, 3, max_sequences, dtype=torch.int64, device=device)
        self._host_found = torch.zeros(self.found.shape, dtype=torch.int64, pin_memory=pinned)

    @staticmethod
    def _split(buffer: Tensor, max_rows: int, max_sequences: int) -> tuple[Tensor, Tensor]:
        rows, sequences = torch.split(buffer, [_ROW_FIELDS * max_rows, _SEQUENCE_FIELDS * max_sequences])
        return rows.view(_ROW_FIELDS, max_rows), sequences.view(_SEQUENCE_FIELDS, max_sequences)

    def sampling(self, sequences: int) -> StaticRows:
        chosen = self._sequences[:, :sequences]
        return StaticRows(chosen[6:8], chosen[-_REAL_FIELDS:].view(torch.float64))

    def fill_context(self, context: Sequence[Sequence[int]], rows: int) -> None:
        """Set tokens, positions and slots of up to `rows` rows, the last repeated, for a pass that draws none.

        Not before the device has read what was set last.
        """
        slots = context[2]
        self._put_rows([*context, [0] * len(slots), [slot * self._slot_length for slot in slots]], rows)
        self._host_whole[0] = 0  # `last`: whatever it is, it has to be there
        self._device.copy_(self._host, non_blocking=True)

    def fill(self, chains: Sequence[ChainRow], rows: int, sequences: int) -> None:
        """Set everything for these chains; up to `rows` tokens and `sequences` sequences the last is repeated.

        Not before the device has read what was set last.
        """
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        common: list[int] = []
        offsets: list[int] = []
        whole: list[list[int]] = []
        real: list[list[float]] = []
        for number, chain in enumerate(chains):
            row, fed = chain.row, len(chain.row.token_ids)
            end = row.start + fed
            shared, offset, longest = 0, row.slot * self._slot_length, self._slot_length - 1
            if chain.apart:
                shared, longest = row.start, row.start + LONGEST_APART - 1
                offset = self._first_apart + number * LONGEST_APART - row.start
            tokens += row.token_ids
            positions += range(row.start, end)
            slots += [row.slot] * fed
            common += [shared] * fed
            offsets += [offset] * fed
            integers, floats = describe(chain.sampling)
            whole.append([len(tokens) - 1, row.slot, end, shared, offset, longest, *integers])
            real.append(floats)
        self._put_rows((tokens, positions, slots, common, offsets), rows)
        count = len(chains)
        for array, by_sequence in ((self._host_whole, whole), (self._host_real, real)):
            array[:, :count] = np.array(by_sequence, array.dtype).T
            array[:, count:sequences] = array[:, count - 1 : count]
        self._device.copy_(self._host, non_blocking=True)
        self.step.zero_()

    def read(self, steps: int) -> Tensor:
        """The first `steps` of `found`, on the host. Waits for the device."""
        self._host_found[:steps].copy_(self.found[:steps], non_blocking=True)
        self.wait()
        return self._host_found[:steps]

    def wait(self) -> None:
        """Until the device has finished all its work."""
        if self.found.is_cuda:
            torch.cuda.current_stream(self.found.device).synchronize()

    def _put_rows(self, by_row: Sequence[Sequence[int]], rows: int) -> None:
        for array, values in zip(self._host_rows, by_row, strict=True):
            array[: len(values)] = values
            array[len(values) : rows] = values[-1]
