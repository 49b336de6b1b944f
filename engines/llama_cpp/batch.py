"""Tokens on their way into llama_decode: NumPy arrays that a llama_batch points into."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.runtime.rows import Row, depths


class FlatBatch:
    """The tokens of a pass one after another, each with its position, its sequences and whether logits are wanted."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._sequences: list[Sequence[int]] = []
        self._wanted: list[bool] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, row: Row, sequences: Sequence[Sequence[int]], first: int = 0, last: int | None = None) -> None:
        """The row's tokens [first, last); `sequences[i]` are those that token i belongs to."""
        part = slice(first, len(row.token_ids) if last is None else last)
        places: Sequence[int] = range(len(row.token_ids)) if row.parents is None else depths(row.parents)
        self._tokens.extend(row.token_ids[part])
        self._positions.extend(row.start + place for place in places[part])
        self._sequences.extend(sequences[part])
        self._wanted.extend(index >= row.logits_from for index in range(*part.indices(len(row.token_ids))))

    def fill_up(self, multiple: int, sequence: int) -> None:
        """Tokens of no meaning until there are a multiple of so many, in a sequence that is empty."""
        missing = -len(self) % multiple
        self.add(Row(0, 0, [0] * missing, logits_from=missing), [[sequence]] * missing)

    def pieces(self, arrays: BatchArrays, most: int) -> Iterator[tuple[Any, int]]:
        """llama_batch after llama_batch of at most `most` tokens, each with how many rows of logits it brings.

        Each is good until the next one is asked for.
        """
        for begin in range(0, len(self), most):
            part = slice(begin, begin + most)
            wanted = self._wanted[part]
            batch = arrays.batch(self._tokens[part], self._positions[part], self._sequences[part], wanted)
            yield batch, sum(wanted)


class BatchArrays:
    """The memory that one llama_batch after another points into, of at most `most` tokens each.

    Making it anew for every token costs a small model a fiftieth of its speed.
    """

    def __init__(self, api: Any, most: int) -> None:
        self._ids, self._places, self._counts, self._flat = (np.zeros(most, dtype=np.int32) for _ in range(4))
        self._counts[:] = 1
        self._singles = self._addresses(self._flat, np.arange(most))
        self._pointers = self._singles.copy()
        self._marks = np.zeros(most, dtype=np.int8)
        self._branches: NDArray[np.int32] | None = None

        def pointer(array: NDArray[Any], kind: Any) -> Any:
            return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

        self._batch = api.llama_batch(
            n_tokens=0,
            token=pointer(self._ids, api.llama_token),
            embd=None,
            pos=pointer(self._places, api.llama_pos),
            n_seq_id=pointer(self._counts, ctypes.c_int32),
            seq_id=pointer(self._pointers, ctypes.POINTER(api.llama_seq_id)),
            logits=pointer(self._marks, ctypes.c_int8),
        )

    def batch(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[Sequence[int]],
        wanted: Sequence[bool],
    ) -> Any:
        """The llama_batch of these tokens, good until the next call. It must not outlive this."""
        count = len(tokens)
        self._batch.n_tokens = count
        self._ids[:count] = tokens
        self._places[:count] = positions
        self._marks[:count] = wanted
        flat = [sequence for ids in sequences for sequence in ids]
        if self._branches is not None:
            self._counts[:], self._pointers[:], self._branches = 1, self._singles, None
        if len(flat) == count:
            self._flat[:count] = flat
        else:
            counts = np.array([len(ids) for ids in sequences], dtype=np.int32)
            self._branches = np.array(flat, dtype=np.int32)
            self._counts[:count] = counts
            self._pointers[:count] = self._addresses(self._branches, np.cumsum(counts) - counts)
        return self._batch

    @staticmethod
    def _addresses(array: NDArray[np.int32], places: NDArray[Any]) -> NDArray[np.uint64]:
        return np.uint64(array.ctypes.data) + places.astype(np.uint64) * np.uint64(array.itemsize)


def floats_at(pointer: Any, rows: int, columns: int) -> NDArray[np.float32]:
    """A view of C's float[rows][columns]; np.ctypeslib.as_array takes twenty times as long."""
    buffer = (ctypes.c_float * (rows * columns)).from_address(ctypes.addressof(pointer.contents))
    view: NDArray[np.float32] = np.frombuffer(memoryview(buffer).cast("B"), dtype=np.float32)
    return view.reshape(rows, columns)
