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

    def pieces(self, api: Any, most: int) -> Iterator[tuple[Any, int]]:
        """llama_batch after llama_batch of at most `most` tokens, each with how many rows of logits it brings."""
        for begin in range(0, len(self), most):
            part = slice(begin, begin + most)
            yield _llama_batch(
                api, self._tokens[part], self._positions[part], self._sequences[part], self._wanted[part]
            )


def _llama_batch(
    api: Any, tokens: list[int], positions: list[int], sequences: list[Sequence[int]], wanted: list[bool]
) -> tuple[Any, int]:
    counts = np.array([len(ids) for ids in sequences], dtype=np.int32)
    flat = np.array([sequence for ids in sequences for sequence in ids], dtype=np.int32)
    firsts = (np.cumsum(counts) - counts).astype(np.uint64)
    arrays: list[NDArray[Any]] = [
        np.array(tokens, dtype=np.int32),
        np.array(positions, dtype=np.int32),
        counts,
        flat,
        np.uint64(flat.ctypes.data) + firsts * np.uint64(flat.itemsize),
        np.array(wanted, dtype=np.int8),
    ]
    ids, places, counts, _, pointers, marks = arrays

    def pointer(array: NDArray[Any], kind: Any) -> Any:
        return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

    batch = api.llama_batch(
        n_tokens=len(tokens),
        token=pointer(ids, api.llama_token),
        embd=None,
        pos=pointer(places, api.llama_pos),
        n_seq_id=pointer(counts, ctypes.c_int32),
        seq_id=pointer(pointers, ctypes.POINTER(api.llama_seq_id)),
        logits=pointer(marks, ctypes.c_int8),
    )
    batch.arrays = arrays  # what the structure points into lives as long as it does
    return batch, int(marks.sum())


def floats_at(pointer: Any, rows: int, columns: int) -> NDArray[np.float32]:
    """A view of C's float[rows][columns]; np.ctypeslib.as_array takes twenty times as long."""
    buffer = (ctypes.c_float * (rows * columns)).from_address(ctypes.addressof(pointer.contents))
    view: NDArray[np.float32] = np.frombuffer(memoryview(buffer).cast("B"), dtype=np.float32)
    return view.reshape(rows, columns)
