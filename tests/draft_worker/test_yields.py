"""What drafts of each kind have earned (draft_worker/yields.py)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from draft_worker.yields import DRAWN, GREEDY, OTHERS_STRENGTH, Yields


def _rates(kind: tuple[str, int], count: int = 32) -> list[float]:
    """Of each token, given those before it, while nothing is known."""
    chances = [1.0, *Yields(strength=4.0).chances(kind, count)]
    return [after / before for before, after in pairwise(chances)]


@pytest.mark.parametrize("match", range(1, 7))
def test_a_copy_that_goes_on_is_believed_the_more(match: int) -> None:
    rates = _rates(("lookup", match))
    assert all(after > before - 1e-9 for before, after in pairwise(rates))
    assert rates[16] > 1.0 - 0.3 * (1.0 - rates[0])


def test_a_copy_of_five_tokens_is_worth_a_long_draft_before_anything_was_seen() -> None:
    assert Yields(strength=4.0).chances(("lookup", 4), 16)[15] > 0.15


@pytest.mark.parametrize("draws", [GREEDY, DRAWN])
def test_a_model_is_as_often_right_at_every_position_while_nothing_is_known(draws: int) -> None:
    assert _rates(("model", draws)) == pytest.approx([0.55] * 32)


def test_a_session_unlike_the_others_is_known_after_a_few_drafts() -> None:
    """Others quoted, this one does not: short matches that were right in theirs are wrong here."""
    everybody = Yields(strength=4.0)
    for _ in range(60):
        everybody.observe(("lookup", 1), [1, 2, 3], [1, 2, 3])
    own = Yields(OTHERS_STRENGTH, everybody)
    for _ in range(4):
        own.observe(("lookup", 1), [1, 2, 3], [4])
    assert own.chances(("lookup", 1), 1)[0] < 0.4
