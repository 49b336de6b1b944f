"""Candidates merged into a tree, so that what they share is computed once (SpecInfer, Miao et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CandidateTree:
    """`token_ids[i]` continues node `parents[i] < i`, or the context's last token if that is −1.

    `paths[c]` are the nodes of candidate c, root first.
    """

    token_ids: list[int]
    parents: list[int]
    paths: list[list[int]]

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))


def merge(candidates: Sequence[Sequence[int]]) -> CandidateTree:
    """One node for every distinct prefix among the candidates."""
    tree = CandidateTree([], [], [])
    children: dict[tuple[int, int], int] = {}
    for candidate in candidates:
        node, path = -1, []
        for token_id in candidate:
            child = children.get((node, token_id))
            if child is None:
                child = children[node, token_id] = len(tree.token_ids)
                tree.token_ids.append(token_id)
                tree.parents.append(node)
            path.append(child)
            node = child
        tree.paths.append(path)
    return tree
