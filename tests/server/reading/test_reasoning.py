from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.reading.reasoning import FORMATS, ReasoningSplitter, Split, Start, choose, split, start_of

THINK = FORMATS["think"]

CASES: list[tuple[Start, str, str, str]] = [
    ("outside", "<think>\nhm\n</think>\n\nYes", "\nhm\n", "\n\nYes"),
    ("outside", "\n <think>hm</think>Yes", "hm", "Yes"),
    ("outside", "Yes <think>no</think>", "", "Yes <think>no</think>"),
    ("outside", "<think>hm", "hm", ""),
    ("outside", "<thin", "", "<thin"),
    ("outside", "  Yes", "", "  Yes"),
    ("outside", " \n", "", " \n"),
    ("outside", "", "", ""),
    ("outside", "<think></think>", "", ""),
    ("outside", "<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
    ("outside", "a</think>b", "", "a</think>b"),
    ("inside", "hm</think>Yes", "hm", "Yes"),
    ("inside", "\nhm </thin k></think>\nYes", "\nhm </thin k>", "\nYes"),
    ("inside", "<think>hm</think>Yes", "hm", "Yes"),
    ("inside", "hm</thi", "hm</thi", ""),
    ("inside", "hm<</think>Yes", "hm<", "Yes"),
    ("inside", "<thi", "<thi", ""),
    ("inside", "  ", "  ", ""),
    ("inside", "</think>Yes", "", "Yes"),
    ("closed", "<think>a</think>b", "", "<think>a</think>b"),
]


def _streamed(start: Start, pieces: list[str]) -> Split:
    splitter = ReasoningSplitter(THINK, start)
    parts = [*(splitter.feed(piece) for piece in pieces), splitter.finish()]
    return Split("".join(part.reasoning for part in parts), "".join(part.content for part in parts))


@pytest.mark.parametrize(("start", "text", "reasoning", "content"), CASES)
def test_the_same_parts_whole_and_cut_at_every_point(start: Start, text: str, reasoning: str, content: str) -> None:
    assert split(THINK, start, text) == Split(reasoning, content)
    assert _streamed(start, list(text)) == Split(reasoning, content)
    for cut in range(len(text) + 1):
        assert _streamed(start, [text[:cut], text[cut:]]) == Split(reasoning, content)


@given(
    start=st.sampled_from(["outside", "inside", "closed"]),
    pieces=st.lists(st.sampled_from(["<think>", "</think>", "<", "</", "think>", " ", "a", "\n"]), max_size=12),
)
def test_pieces_add_up_and_no_text_is_lost(start: Start, pieces: list[str]) -> None:
    text = "".join(pieces)
    whole = split(THINK, start, text)
    assert _streamed(start, pieces) == whole
    joined = whole.reasoning + whole.content
    # At most one pair of tags goes, and the whitespace before the first.
    assert len(text.replace("</think>", "", 1).replace("<think>", "", 1).strip()) <= len(joined)


def test_text_is_handed_on_as_soon_as_it_is_known() -> None:
    splitter = ReasoningSplitter(THINK, "inside")
    assert splitter.feed("so ") == Split(reasoning="so ")
    assert splitter.feed("on</th") == Split(reasoning="on")
    assert splitter.feed("ink>yes") == Split(content="yes")


def test_the_format_and_where_the_answer_starts() -> None:
    qwen = "{%- if enable_thinking %}<think>\n\n</think>{%- endif %}"
    assert choose(qwen) == THINK
    assert choose("no thoughts") is None
    assert choose(qwen, "none") is None
    assert choose("", "magistral") == FORMATS["magistral"]
    with pytest.raises(ValueError, match="think"):
        choose("", "other")
    assert start_of(THINK, "<|im_start|>assistant\n<think>\n") == "inside"
    assert start_of(THINK, "<|im_start|>assistant\n<think>\n\n</think>\n\n") == "closed"
    assert start_of(THINK, "<|im_start|>assistant\n") == "outside"
