"""What a drafter by shared text drew, as the target's tokens: half words, ends of turns, and marks that are special."""

from __future__ import annotations

from typing import Any

import pytest

from draft_worker.vocabularies.shared_text import TextReading
from draft_worker.vocabularies.translation import Translator
from protocol.messages import DraftRequest
from testing.wire import request
from tests.draft_worker.vocabularies.test_text import speech

THEIRS, OURS = speech("qwen", "english"), speech("llama", "code")
END = THEIRS.stop
CONTEXT = THEIRS.encode("The quick brown fox and the lazy dog")


def retokenised(drawn: list[int], context: list[int] = CONTEXT, **sampling: Any) -> list[int]:
    nothing: Any = None
    translator = Translator(THEIRS, OURS, nothing, nothing, None, "target", lambda *judged: None)
    reading = TextReading(THEIRS, OURS)
    reading.update(context, 0, len(context))
    message = request(ids=context, draft_tokens=8, session_id=None, sampling=sampling)
    return translator._retokenised(reading, drawn, DraftRequest.model_validate(message))


def test_the_end_of_a_turn_is_the_targets() -> None:
    assert END is not None
    assert OURS.stop is not None
    said = OURS.encode(" were friends")
    assert retokenised([*said, OURS.stop]) == [*THEIRS.encode(" were friends"), END]
    assert retokenised([OURS.stop]) == [END]
    assert retokenised([*said, OURS.stop], ignore_eos=True) == THEIRS.encode(" were friends")


@pytest.mark.parametrize("mark", ["<|im_start|>", "<|endoftext|>"])
def test_a_draft_ends_before_what_the_target_takes_for_a_mark(mark: str) -> None:
    """The drafter has no such token and spells it out."""
    drawn = OURS.encode(f" were friends{mark} and more and more")
    assert retokenised(drawn) == THEIRS.encode(" were friends")


def test_a_spelled_out_end_of_the_turn_is_one() -> None:
    drawn = OURS.encode(" were friends<|im_end|> and more and more")
    assert retokenised(drawn) == [*THEIRS.encode(" were friends"), END]
    assert retokenised(drawn, ignore_eos=True) == THEIRS.encode(" were friends")


def test_after_a_context_in_unusual_tokens_the_draft_is_tokenised_by_itself() -> None:
    letters = [THEIRS.encode(letter)[0] for letter in "the friends"]
    assert THEIRS.encode("the friends") != letters
    text = " were friends for many"
    drawn = OURS.encode(text)
    found = retokenised(drawn, letters)
    assert found
    assert found == THEIRS.encode(text)[: len(found)]


def test_what_may_yet_change_is_left_out() -> None:
    """ "friend" alone is one token's worth of text that "friends" would change."""
    whole = THEIRS.encode(" for many friends")
    part = THEIRS.encode(" for many frien")
    assert part != whole[: len(part)]
    found = retokenised(OURS.encode(" for many frien"))
    assert found
    assert found == whole[: len(found)]
