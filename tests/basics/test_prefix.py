"""Comparing lists of token ids: blocks must make no difference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basics.prefix import shared_prefix


@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=30))
def test_shared_prefix(one: list[int], other: list[int]) -> None:
    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    assert shared_prefix(one, other) == expected


@pytest.mark.parametrize("difference", [0, 1, 511, 512, 513, 1999])
def test_shared_prefix_over_blocks(difference: int) -> None:
    one = list(range(2000))
    other = [*one[:difference], -1, *one[difference + 1 :]]
    assert shared_prefix(one, other) == difference


@given(st.lists(st.integers(0, 1), max_size=12), st.lists(st.integers(0, 1), max_size=12), st.integers(0, 14))
def test_from_a_start_on(one: list[int], other: list[int], start: int) -> None:
    assert shared_prefix(one, other, start) == shared_prefix(one[start:], other)
