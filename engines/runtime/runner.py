"""What an engine implements to serve sequences from the loop: `ModelRunner` and, if it can, `Chains`.

Slots are numbers: row i of a torch tensor of keys and values, or sequence id i of a llama.cpp context. The loop
(engines/runtime/loop.py) decides what goes into a pass and keeps account of which ids a slot holds; a runner computes
and remembers. docs/add_an_engine.md lists the files in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engines.runtime.rows import Row
from engines.sampling.rows import SamplingRow


class ModelRunner(Protocol):
    """A model with memory for `num_slots` sequences of `slot_length` tokens. Used by one thread, the loop's.

    `vocab_size` is how many logits a row has, padding rows of the output layer included.
    """

    num_slots: int
    slot_length: int

    @property
    def vocab_size(self) -> int: ...

    def forward(self, rows: Sequence[Row]) -> list[Tensor]:
        """One pass over all rows, each of another slot.

        What a slot held from `row.start` on is forgotten: that is how a sequence is cut back. A chain's keys and values
        stay behind `row.start`; a tree's stay nowhere until `commit`, and its logits are those that each of its paths
        would have as a chain.

        Returns, for each row, float32 logits [len(token_ids) - logits_from, vocab_size] on any device. They may be
        views of a buffer that the next call overwrites (torch.from_numpy wraps one without a copy); whoever keeps them
        longer than that copies them.

        Raises:
            ValueError: if a row does not fit (engines.runtime.rows.check_rows). Whatever is raised fails the jobs
            of this pass and no others.
        """
        ...

    def commit(self, slot: int, start: int, path: Sequence[int]) -> None:
        """Keep part of the latest pass's tree: its nodes `path`, root to leaf, become positions start, start + 1, …

        Raises:
            ValueError: if the latest pass fed no tree to `slot` at `start`, or `path` is not one from its root.
        """
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Make the first `length` positions of slot `target` those of `source`. What `target` held is forgotten."""
        ...

    def reusable(self, slot: int, length: int) -> int:
        """How many of the first `length` tokens that a slot holds need not be computed again to go on behind them.

        Most models keep every key: `length`. Where states or windows can't be cut back so far it is less; `forward`
        then computes the missing ones in passes of its own, so whoever has a choice begins where this says.
        """
        ...


@dataclass(frozen=True, slots=True)
class ChainRow:
    """`row` is a chain with logits for its last token, after which `count` tokens are to be drawn, as `sampling` says
    for the first of them.

    To `kept` is added, token by token, what the runner has of its place: the logits, float32 [V], or only the
    runner-up, which would have been drawn instead.

    One that is `apart` leaves nothing in its slot, of which it reads no more than [0, row.start): others of that slot
    may be drawn beside it. What those before it in the same call feed is there for it.
    """

    row: Row
    sampling: SamplingRow
    count: int
    kept: list[Tensor | int] | None = None
    apart: bool = False


class Chains(Protocol):
    """Draws several tokens of a sequence without the host between them, with the same model and memory. Optional."""

    apart: int
    """How many chains that are apart can be drawn at about the cost of one; 0: none can."""
    longest_apart: int
    """Tokens that one of them may feed and draw."""

    def takes(self, row: Row, sampling: SamplingRow) -> bool:
        """Whether tokens after `row` can be drawn here."""
        ...

    def run(self, chains: Sequence[ChainRow]) -> list[list[int]]:
        """At most `count` tokens for each; fewer, maybe none, if the ordinary way is to go on.

        The slots then hold, behind what `row` fed, all tokens of the answer but the last.
        """
        ...

    def read(self, rows: Sequence[Row]) -> None:
        """Feed chains of tokens of which no logits are wanted."""
        ...
