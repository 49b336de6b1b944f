"""Drafts from a predicted output: followed while it agrees, found again after edits."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from draft_worker.drafters.prediction import PredictedText

TEXT = list(range(100, 160))


def after(output: Sequence[int], tokens: int = 4, predicted: Sequence[int] = TEXT, window: int = 16) -> list[int]:
    return PredictedText(predicted, window).draft(output, 0, tokens)


def test_it_is_followed_from_the_start_to_the_end() -> None:
    assert after([]) == TEXT[:4]
    assert after(TEXT[:10]) == TEXT[10:14]
    assert after(TEXT[:58]) == TEXT[58:]
    assert after(TEXT) == []


def test_a_replaced_token_is_stepped_over_at_once() -> None:
    assert after([*TEXT[:10], 7]) == TEXT[11:15]
    assert after([*TEXT[:10], 7, TEXT[11]]) == TEXT[12:16]


def test_one_token_for_two_and_two_for_one_are_found_again() -> None:
    assert after([*TEXT[:10], 7, TEXT[12]]) == TEXT[13:17]
    assert after([*TEXT[:10], 7, 8, TEXT[11]]) == TEXT[12:16]


def test_insertions_and_deletions_are_found_again() -> None:
    assert after([*TEXT[:10], 1, 2, 3, 4, 5, 6]) == [], "lost: something else has to draft"
    assert after([*TEXT[:10], 1, 2, 3, 4, 5, 6, *TEXT[10:12]]) == TEXT[12:16]
    assert after([*TEXT[:10], *TEXT[20:22]]) == TEXT[22:26]


def test_a_jump_far_away_needs_more_to_go_by() -> None:
    assert after([*TEXT[:4], *TEXT[40:43]], window=8) == []
    assert after([*TEXT[:4], *TEXT[40:44]], window=8) == TEXT[44:48]
    assert after([*TEXT[:40], *TEXT[2:6]], window=8) == TEXT[6:10], "back, too"


@given(st.lists(st.integers(0, 9), max_size=30), st.lists(st.integers(0, 9), max_size=30), st.data())
def test_growing_and_going_back_give_what_a_new_reader_gets(
    predicted: list[int], output: list[int], data: st.DataObject
) -> None:
    drafter = PredictedText(predicted, 8)
    before: list[int] = []
    for _ in range(4):
        length = data.draw(st.integers(0, len(output)))
        now = output[:length]
        unchanged = min(len(before), length)
        assert drafter.draft(now, unchanged, 5) == after(now, 5, predicted, window=8)
        before = now


def test_renaming_a_variable_drafts_nearly_everything() -> None:
    """The case it is made for: 40 renames, one token for two, in 1,500 tokens."""
    rng = random.Random(1)
    predicted = [rng.randrange(1000) for _ in range(1500)]
    places = sorted(rng.sample(range(20, 1480), 40))
    truth: list[int] = []
    for place, token_id in enumerate(predicted):
        truth += [2000] if place in places else [token_id] if place - 1 not in places else []
    drafter, output, rounds = PredictedText(predicted, 64), [], 0
    while len(output) < len(truth):
        draft = drafter.draft(output, len(output), 16)
        accepted = 0
        while (
            accepted < len(draft) and draft[accepted] == truth[len(output) + accepted : len(output) + accepted + 1][0]
        ):
            accepted += 1
            if len(output) + accepted == len(truth):
                break
        output += truth[len(output) : len(output) + accepted + 1]
        rounds += 1
    assert output == truth
    assert rounds < len(truth) / 16 + 3 * len(places)
