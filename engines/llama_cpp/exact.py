"""Bitwise mode on llama.cpp: what it takes (the options: engines.llama_cpp.loading), and the trial on the model itself.

A row's logits depend on its neighbours in five places of llama.cpp's CPU backend (found by trying, ggml 0.25):
products over repacked weights (other code from some number of rows on); products over K-quants in tiles, from eight
rows on, which an environment variable turns off; attention without the fused kernel; the fused
kernel's other ways, which it takes for keys and values of one type alone: keys split over threads for a pass of one
row over 512 keys or more, and tiles of many rows; and the order of cells, in which it sums. Hence: flash attention,
keys in bfloat16 beside values in float16, cells in order (engines.llama_cpp.cells), and repacked weights as follows or
not at all.

Repacked weights are worth having: products over K-quants take a fifth less time for one row and half of it for many.
They have two kinds of bits: those of rows in whole tiles of four, in any tile of any pass, and those of rows that are
left over, one by one. So where weights are repacked, prompts are read in whole tiles, filled up where they end, and all
that is generated, or drafted, goes in passes of three rows at most; which of the two a token is follows from the
request (Row.prompt), and keys and values of one kind are never taken for the other (engines.runtime.slots).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from engines.errors import BatchInvarianceError
from engines.llama_cpp.runner import Runner
from engines.runtime.rows import Row

_CHECK_SEED = 20_260_113
_CONTEXT = 48
_PIECE = 8
_TAIL = 16
_SIZES = (5, 11, 28)
_MANY_CELLS = 600
"""More than the 512 from which on llama.cpp splits keys over threads."""
_MOST_BESIDE = 80
"""More rows than the 64 from which on it takes them in tiles."""


def self_check(runner: Runner, chunk: int) -> None:
    """Compare bits of passes cut, batched and branched, over few cells and over many. Overwrites the runner's slots.

    `chunk` is the most prompt tokens that a pass reads.

    Raises:
        BatchInvarianceError: naming the first difference found.
    """
    generator = torch.Generator().manual_seed(_CHECK_SEED)
    context = min(_CONTEXT, runner.slot_length - _TAIL)
    ids = torch.randint(runner.vocab_size, (context + _TAIL,), generator=generator).tolist()
    references = []
    for spread in (False, True):
        where = f"with {context} tokens" + (f" among {_MANY_CELLS} cells" if spread else "")
        _read(runner, ids[:context], spread)
        tail = enumerate(ids[context:])
        reference = torch.cat([runner.forward([Row(0, context + i, [token])])[0].clone() for i, token in tail])
        references.append(reference)
        ways = _other_ways(runner, ids, context, chunk)
        if runner.reads_apart and not spread:
            ways = chain(ways, _other_readings(runner, ids, context))
        for what, logits in ways:
            if not torch.equal(logits, references[0][: len(logits)]):
                raise BatchInvarianceError(
                    f"batch_invariant does not hold here: {where} {what} gives other bits than one token at a time"
                )
    if not torch.equal(references[0], references[1]):
        raise BatchInvarianceError(f"batch_invariant does not hold here: {_MANY_CELLS} cells give other bits than few")


def _read(runner: Runner, ids: list[int], spread: bool, size: int = _PIECE) -> None:
    """Read a context into slot 0. `spread`: its cells lie all over many others, so that wherever keys are split for
    threads or tiles, the split goes through them."""
    runner.cells.forget_all()
    branches = iter(reversed(runner.cells.branches()))  # trees take the first
    for start in range(0, len(ids), size):
        runner.forward([_prompt(0, start, ids[start : start + size])])
        taken = 0
        while spread and taken < _MANY_CELLS * _PIECE // len(ids):
            runner.cells.fill(0, next(branches))
            taken += start + _PIECE


def _other_ways(runner: Runner, ids: list[int], context: int, chunk: int) -> Iterator[tuple[str, Tensor]]:
    """Logits of ids[context:], or the first of them, computed in other ways."""
    tail = ids[context:]
    for count in (2, 3, 4, 6, 8, 12, 16):
        yield f"a pass of {count}", runner.forward([Row(0, context, tail[:count])])[0]
    short = tail[:8]
    parents = [-1, 0, *[-1, *range(2, 9)]]
    yield "a tree", runner.forward([Row(0, context, [*ids[:2], *short], parents=parents)])[0][2:]
    if runner.num_slots > 1:
        runner.copy(0, 1, context - 15)
        runner.forward([_prompt(1, context - 15, ids[context - 15 : context - 8])])
        runner.forward([_prompt(1, context - 8, ids[context - 8 : context])])
        beside = (ids * (chunk // len(ids) + 1))[: min(chunk, _MOST_BESIDE, runner.slot_length)]
        yield "a copy read on beside a prompt", runner.forward([_prompt(0, 0, beside), Row(1, context, tail)])[1]
        yield "a copy beside drafts", runner.forward([Row(0, 0, beside), Row(1, context, tail)])[1]
        runner.forward([_prompt(0, 0, ids[:context])])
        yield "a prompt read at once", runner.forward([Row(0, context, tail[:5]), Row(1, context, tail[:1])])[0]


def _other_readings(runner: Runner, ids: list[int], context: int) -> Iterator[tuple[str, Tensor]]:
    """Logits of ids[context:] after a prompt that was read in other pieces, few of them whole tiles."""
    for size in _SIZES:
        _read(runner, ids[:context], False, size)
        yield f"a prompt read in pieces of {size}", runner.forward([Row(0, context, ids[context:])])[0]


def _prompt(slot: int, start: int, ids: list[int]) -> Row:
    """A row that reads a prompt and wants no logits."""
    return Row(slot, start, ids, logits_from=len(ids), prompt=len(ids))
