"""A choice's text and counts do not depend on how its rounds fell."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from protocol.messages import Sampling
from server.backend import GenerationRequest, Round, Speculation
from server.errors import Unavailable
from server.text.choice import Choice
from server.text.model import TextModel
from tests.server.openai.api_doubles import END, TOKENIZER, make_round, served_model, split

TEXT = TextModel(served_model().tokenizer)
STORY = "the quick brown fox jumps over the lazy dog"
IDS = [*TOKENIZER.encode(STORY).ids, END]
SPECULATION = Speculation(True, 5, None, 1, None, None, "deterministic", 0.1, 8, False)


def choice(min_tokens: int = 0, **options: Any) -> Choice:
    sampling = Sampling(seed=1, min_tokens=min_tokens)
    request = GenerationRequest("r", [5], 100, sampling, 0, SPECULATION)
    return Choice(0, request, TEXT.detokenizer(True), **options)


def play(one: Choice, rounds: list[Round]) -> str:
    text = ""
    for round in rounds:
        text += one.push(round).text
        if one.finish_reason is not None:
            break
    return text


def test_drafts_after_a_stop_string_are_not_accepted_ones() -> None:
    ids = TOKENIZER.encode("the end of").ids
    one = choice(stop=["the"])
    delta = one.push(make_round([*ids, 40, 41], num_drafted=8, num_accepted=len(ids) + 1))
    kept = next(n for n in range(len(ids) + 1) if "the" in TOKENIZER.decode(ids[:n]))
    assert delta.token_ids == ids[:kept]
    assert (one.counts.completion_tokens, one.counts.accepted, one.counts.drafted) == (kept, kept, 8)
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("", "stop", "the")


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    stop=st.sampled_from([[], ["fox"], ["o"], ["dog!", "lazy", "zy d"], ["dog"], [" quick", "the quick brown f"]]),
    include=st.booleans(),
    min_tokens=st.integers(0, 30),
)
def test_any_rounds_give_the_same(sizes: list[int], stop: list[str], include: bool, min_tokens: int) -> None:
    rounds: list[Round] = []
    start = 0
    while start < len(IDS):
        size = sizes[len(rounds) % len(sizes)]
        part = IDS[start : start + size]
        start += size
        ended = part[-1] == END
        rounds.append(
            make_round(part, stop_reason="stop_token" if ended else None, stop_token_id=END if ended else None)
        )
    one_by_one = choice(min_tokens, stop=stop, include_stop=include)
    expected = play(one_by_one, split(IDS, 1))
    other = choice(min_tokens, stop=stop, include_stop=include)
    assert play(other, rounds) == expected
    assert other.counts.completion_tokens == one_by_one.counts.completion_tokens
    assert other.finish_reason == one_by_one.finish_reason == "stop"


def test_stop_strings_count_after_min_tokens_only() -> None:
    ids = TOKENIZER.encode(STORY).ids
    first = next(n for n in range(len(ids) + 1) if "the" in TOKENIZER.decode(ids[:n]))
    again = play(choice(min_tokens=first, stop=["the"]), split(IDS, 3))
    assert again == STORY[: STORY.rindex("the")]


def test_rounds_without_an_end_are_an_error() -> None:
    one = choice()
    one.push(make_round([40]))
    with pytest.raises(Unavailable):
        one.end()


def test_one_lossy_round_makes_the_whole_lossy() -> None:
    one = choice()
    play(one, [make_round([40]), make_round([41], lossless=False), make_round([42])])
    assert one.counts.lossless is False
