"""Stop strings: the same cut however the text is split."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from server.text.stops import StopStrings

letters = st.text("ab", max_size=30)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4)


def cut_by_hand(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Where the first stop string to be completed begins, and which it is."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return end - len(longest), longest
    return None


@settings(max_examples=200, deadline=None)
@given(text=letters, stops=stop_lists, cuts=st.lists(st.integers(0, 30), max_size=8), include=st.booleans())
def test_any_split_gives_the_same(text: str, stops: list[str], cuts: list[int], include: bool) -> None:
    checker = StopStrings(stops, include=include)
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    shown = ""
    expected = cut_by_hand(text, stops)
    for start, end in itertools.pairwise(edges):
        shown += checker.push(text[start:end])
        if expected is None or end <= expected[0]:
            # Text is held back only if it is the beginning of a stop string.
            held = text[len(shown) : end]
            assert any(stop.startswith(held) for stop in stops)
    if expected is None:
        assert checker.found is None
        assert shown + checker.finish() == text
    else:
        start, stop = expected
        assert checker.found == stop
        assert shown == (text[: start + len(stop)] if include else text[:start])
        assert checker.finish() == ""
        assert checker.push("more") == ""


def test_no_part_of_a_stop_string_is_ever_shown() -> None:
    checker = StopStrings(["</answer>"])
    assert [checker.push(piece) for piece in ("yes<", "/ans", "wer", ">tail")] == ["yes", "", "", ""]
    assert checker.found == "</answer>"


def test_a_false_beginning_is_given_back() -> None:
    checker = StopStrings(["</answer>"])
    assert [checker.push(piece) for piece in ("a</", "b", "</")] == ["a", "</b", ""]
    assert checker.finish() == "</"
    assert checker.found is None


def test_without_stop_strings_nothing_is_held() -> None:
    assert StopStrings([]).push("anything") == "anything"


@pytest.mark.parametrize("pieces", [["aab"], ["a", "a", "b"], ["aa", "b"]])
def test_overlapping_beginnings(pieces: list[str]) -> None:
    checker = StopStrings(["ab"])
    assert "".join(checker.push(piece) for piece in pieces) == "a"
