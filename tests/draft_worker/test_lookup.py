"""Prompt lookup: what followed the longest suffix the last time; an index that can forget."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from draft_worker.drafters.lookup import LookupIndex

IDS = st.lists(st.integers(0, 2), max_size=40)


def index_of(ids: Sequence[int], min_ngram: int = 2, max_ngram: int = 8) -> LookupIndex:
    index = LookupIndex(min_ngram, max_ngram)
    index.extend(ids)
    return index


def draft(ids: list[int], tokens: int = 3, candidates: int = 1, **sizes: int) -> list[list[int]]:
    return index_of(ids, **sizes).continuations(ids, tokens, candidates)


def test_the_most_recent_of_the_longest_wins() -> None:
    assert draft([1, 2, 3, 1, 2, 4, 1, 2]) == [[4, 1, 2]]
    assert draft([9, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2]) == [[3, 8, 1]], "longer beats more recent"


def test_the_largest_ngram_bounds_what_counts_as_longer() -> None:
    ids = [9, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2]
    assert draft(ids, max_ngram=2) == [[4, 9, 1]]


def test_nothing_is_drafted_without_a_match() -> None:
    assert draft([1, 2, 3, 4]) == []
    assert draft([1, 2, 1]) == [], "a single token is too short a suffix"
    assert draft([1, 2, 1], min_ngram=1) == [[2, 1, 2]]
    assert draft([]) == []
    assert draft([1, 1, 1], tokens=0) == []


def test_a_repetition_goes_on() -> None:
    assert draft([5, 1, 2, 3, 1, 2, 3], tokens=7) == [[1, 2, 3, 1, 2, 3, 1]]


def test_candidates_come_from_different_occurrences() -> None:
    ids = [1, 2, 3, 0, 1, 2, 4, 0, 1, 2, 3, 0, 1, 2]
    assert draft(ids, tokens=1, candidates=3) == [[4], [3]], "the longest first, no draft twice"


def naive(ids: Sequence[int], tokens: int, min_ngram: int, max_ngram: int) -> list[list[int]]:
    best: tuple[int, int] | None = None
    for end in range(min_ngram, len(ids)):
        length = 0
        while length < min(max_ngram, end) and ids[end - length - 1] == ids[len(ids) - length - 1]:
            length += 1
        if length >= min_ngram and (best is None or length >= best[0]):
            best = (length, end)
    if best is None:
        return []
    continuation = list(ids[best[1] :])
    return [(continuation * tokens)[:tokens]]


@given(IDS, st.integers(1, 6), st.integers(1, 4), st.integers(0, 4))
def test_against_a_search_of_everything(ids: list[int], tokens: int, min_ngram: int, more: int) -> None:
    sizes = {"min_ngram": min_ngram, "max_ngram": min_ngram + more}
    assert draft(ids, tokens, **sizes) == naive(ids, tokens, **sizes)


@given(IDS, IDS, st.integers(0, 40))
@example([1, 2, 1, 2], [3, 1, 2], 2)
def test_forgetting_leaves_no_trace(first: list[int], second: list[int], keep: int) -> None:
    index = index_of(first)
    index.truncate(keep)
    ids = [*first[:keep], *second]
    index.extend(ids)
    assert len(index) == len(ids)
    assert index.continuations(ids, 4, 3) == index_of(ids).continuations(ids, 4, 3)
