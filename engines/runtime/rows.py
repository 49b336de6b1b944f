"""What one sequence feeds in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Row:
    """What one sequence feeds in one pass.

    `slot` holds keys and values for positions [0, start), all of them attended to; whatever it held from `start` on is
    forgotten. `token_ids` are fed at positions start, start + 1, … (a chain, `parents` None: its keys and values are
    written to the slot), or as a tree: `parents[i] < i` is the index of token i's parent, -1 the context's end; token
    i sits at position start + its depth, sees the context and its ancestors, and the slot is [0, start) until
    `Runner.commit`. Logits are returned for token_ids[logits_from:]; `logits_from == len(token_ids)` asks for none.

    The first `prompt` tokens are of what the request began with. A runner may compute these in other ways than what is
    generated (LoadedModel.reads_apart).
    """

    slot: int
    start: int
    token_ids: Sequence[int]
    parents: Sequence[int] | None = None
    logits_from: int = 0
    prompt: int = 0

    def followed_by(self, token_ids: Sequence[int]) -> Row:
        """A chain that goes on with more tokens."""
        return replace(self, token_ids=[*self.token_ids, *token_ids])


def flattened(rows: Sequence[Row]) -> tuple[list[int], list[int], list[int]]:
    """Tokens, positions and slots of chains, one behind the other."""
    tokens = [token for row in rows for token in row.token_ids]
    positions = [row.start + i for row in rows for i in range(len(row.token_ids))]
    return tokens, positions, [row.slot for row in rows for _ in row.token_ids]


def depths(parents: Sequence[int]) -> list[int]:
    """Depth of every node of a tree, 0 for those that follow the context directly."""
    result: list[int] = []
    for parent in parents:
        result.append(result[parent] + 1 if parent >= 0 else 0)
    return result


def paths(parents: Sequence[int]) -> list[list[int]]:
    """The way from the root to every leaf, by leaf."""
    inner = set(parents)
    found = []
    for leaf in (node for node in range(len(parents)) if node not in inner):
        path = []
        node = leaf
        while node >= 0:
            path.append(node)
            node = parents[node]
        found.append(path[::-1])
    return found


def check_rows(rows: Sequence[Row], num_slots: int, slot_length: int, num_ids: int) -> None:
    """Refuse rows that would write outside the memory or into one another.

    Raises:
        ValueError: naming the row and what is wrong with it.
    """
    seen: set[int] = set()
    for index, row in enumerate(rows):
        count = len(row.token_ids)
        if not 0 <= row.slot < num_slots:
            raise ValueError(f"rows[{index}]: slot {row.slot} is not one of {num_slots}")
        if row.slot in seen:
            raise ValueError(f"rows[{index}]: slot {row.slot} appears twice in one pass")
        seen.add(row.slot)
        if row.start < 0:
            raise ValueError(f"rows[{index}]: start {row.start} is negative")
        if not 0 <= row.logits_from <= count:
            raise ValueError(f"rows[{index}]: logits_from {row.logits_from} is not within its {count} tokens")
        extent = count
        if row.parents is not None:
            if len(row.parents) != count:
                raise ValueError(f"rows[{index}]: {len(row.parents)} parents for {count} tokens")
            if any(not -1 <= parent < node for node, parent in enumerate(row.parents)):
                raise ValueError(f"rows[{index}]: a parent must be -1 or come before its child")
            extent = max(depths(row.parents), default=-1) + 1
        if row.start + extent > slot_length:
            raise ValueError(f"rows[{index}]: {row.start} + {extent} tokens exceed the slot's length of {slot_length}")
        if count and not (min(row.token_ids) >= 0 and max(row.token_ids) < num_ids):
            raise ValueError(f"rows[{index}]: a token id is outside the model's {num_ids} ids")


def check_path(row: Row, start: int, path: Sequence[int]) -> None:
    """Refuse to commit anything but a path from the root of `row`'s tree, at the tree's own place.

    Raises:
        ValueError
    """
    if start != row.start:
        raise ValueError(f"start {start} is not the tree's start {row.start}")
    parents = row.parents or []
    previous = -1
    for node in path:
        if not 0 <= node < len(parents) or parents[node] != previous:
            raise ValueError(f"path {list(path)} does not lead from the root of the tree down")
        previous = node
