"""A causal language model with key-value memory in slots: many ragged rows in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """What one sequence feeds in one pass.

    `slot` holds keys and values for positions [0, start), all of them attended to. `token_ids` are fed at positions
    start, start + 1, … (a chain, `parents` None: its keys and values are written to the slot), or as a tree:
    `parents[i] < i` is the index of token i's parent, -1 the context's end; token i sits at position start + its depth,
    sees the context and its ancestors, and nothing is written to the slot until `Runner.commit`. Logits are returned
    for token_ids[logits_from:]; `logits_from == len(token_ids)` asks for none.
    """

    slot: int
    start: int
    token_ids: Sequence[int]
    parents: Sequence[int] | None = None
    logits_from: int = 0
