"""The llama_batch that a pass points llama.cpp to: what it says of each token, whatever the batch before it was."""

from __future__ import annotations

from typing import Any

from engines.llama_cpp.batch import BatchArrays, FlatBatch
from engines.llama_cpp.library import library
from engines.runtime.rows import Row

Told = list[tuple[int, int, list[int], bool]]
"""Of each token: id, position, sequences, whether its logits are wanted."""

CHAIN = Row(2, 7, [11, 12, 13, 14], logits_from=3)
TREE = Row(0, 5, [21, 22, 23], [-1, 0, 0], 0)


def told(batch: Any) -> Told:
    return [
        (
            batch.token[place],
            batch.pos[place],
            [batch.seq_id[place][number] for number in range(batch.n_seq_id[place])],
            bool(batch.logits[place]),
        )
        for place in range(batch.n_tokens)
    ]


def pieces(arrays: BatchArrays, rows: list[tuple[Row, list[list[int]]]], most: int = 8) -> list[tuple[Told, int]]:
    batch = FlatBatch()
    for row, sequences in rows:
        batch.add(row, sequences)
    return [(told(piece), wanted) for piece, wanted in batch.pieces(arrays, most)]


def test_a_batch_says_the_same_after_a_tree_as_before_it() -> None:
    arrays = BatchArrays(library().api, 8)
    chain: Told = [(11, 7, [2], False), (12, 8, [2], False), (13, 9, [2], False), (14, 10, [2], True)]
    tree: Told = [(21, 5, [9, 8], True), (22, 6, [9], True), (23, 6, [8], True)]
    for _ in range(2):
        assert pieces(arrays, [(CHAIN, [[2]] * 4)]) == [(chain, 1)]
        assert pieces(arrays, [(TREE, [[9, 8], [9], [8]]), (CHAIN, [[2]] * 4)]) == [(tree + chain, 4)]
        assert pieces(arrays, [(Row(1, 3, [5], logits_from=0), [[1]])]) == [([(5, 3, [1], True)], 1)]


def test_a_batch_is_cut_into_passes() -> None:
    arrays = BatchArrays(library().api, 8)
    (first, none), (last, one) = pieces(arrays, [(CHAIN, [[2]] * 4)], most=3)
    assert ([token for token, *_ in first], none) == ([11, 12, 13], 0)
    assert ([token for token, *_ in last], one) == ([14], 1)
