"""Candidates as a tree: every distinct prefix once, every candidate a path."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from target_worker.tree import merge


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=6))
def test_paths_spell_the_candidates_without_duplicate_nodes(candidates: list[list[int]]) -> None:
    tree = merge(candidates)
    assert [[tree.token_ids[node] for node in path] for path in tree.paths] == candidates
    for path in tree.paths:
        assert [tree.parents[node] for node in path] == [-1, *path[:-1]][: len(path)]
    prefixes = {tuple(candidate[: i + 1]) for candidate in candidates for i in range(len(candidate))}
    assert len(tree.token_ids) == len(prefixes)
    assert {node for path in tree.paths for node in path} == set(range(len(prefixes)))
    assert all(parent < node for node, parent in enumerate(tree.parents))


def test_a_single_candidate_is_a_chain() -> None:
    assert merge([[5, 6, 7]]).is_chain
    assert merge([[5, 6], [5, 6, 7]]).is_chain
    assert merge([]).is_chain
    assert not merge([[5, 6], [5, 7]]).is_chain
