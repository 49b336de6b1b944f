"""The scripted drafter: which of its drafts are right, and how wrong the others are."""

from __future__ import annotations

import pytest

from protocol.messages import DraftRequest
from testing.scripted_draft import Script
from testing.wire import request

TRUTH = list(range(100, 140))


def agreement(draft: list[int], context: int) -> int:
    truth = TRUTH[context:]
    return next((i for i, (a, b) in enumerate(zip(draft, truth, strict=False)) if a != b), min(len(draft), len(truth)))


def taught(mode: str) -> Script:
    script = Script(mode=mode, vocabulary=300)
    for length in range(10, len(TRUTH) + 1):
        script.remember(TRUTH[:length])
    return script


def test_right_is_what_was_seen_before() -> None:
    assert taught("right").drafts(TRUTH[:12], 5, 3) == [TRUTH[12:17]]
    assert Script(mode="right").drafts(TRUTH[:12], 5, 3) == [[]]


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("candidates", [1, 3])
def test_partly_right_is_right_up_to_a_drawn_place(count: int, candidates: int) -> None:
    script = taught("partly_right")
    wins, lengths = set(), set()
    for turn in range(200):
        context = 10 + turn % 20
        drafts = script.drafts(TRUTH[:context], count, candidates)
        assert [len(draft) for draft in drafts] == [count] * candidates
        right = [agreement(draft, context) for draft in drafts]
        assert len(set(right)) == min(candidates, count + 1), "each candidate is right up to a place of its own"
        wins.add(right.index(max(right)))
        lengths |= set(right)
    assert wins == set(range(candidates)), "any candidate may be the best"
    assert lengths == set(range(count + 1)), "wholly wrong, wholly right, and all between"


def test_partly_right_knows_nothing_of_what_it_has_not_seen() -> None:
    script = Script(mode="partly_right", vocabulary=300)
    assert [len(draft) for draft in script.drafts(TRUTH[:12], 4, 2)] == [4, 4]
    assert max(agreement(draft, 12) for draft in script.drafts(TRUTH[:12], 4, 2)) < 4


def test_partly_right_goes_on_wrongly_behind_the_end_of_what_it_saw() -> None:
    (draft,) = taught("partly_right").drafts(TRUTH[:-2], 8, 1)
    assert len(draft) == 8


def test_what_it_prepares_is_there_sooner_if_it_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("testing.scripted_draft.time.monotonic", lambda: now)
    asked = DraftRequest.model_validate(request([1], draft_tokens=3))
    for mode, seconds in (("right", 0.1), ("wrong", 0.3)):
        script = Script(mode=mode, delay=0.3)
        assert script.late(asked) == (0.3, False)
        script.looking[str(asked.session_id)] = 99.8
        assert script.late(asked) == (pytest.approx(seconds), mode == "right")
        assert script.late(asked) == (0.3, False), "once"
