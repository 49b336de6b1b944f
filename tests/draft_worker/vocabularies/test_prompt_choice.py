"""Which prompt a drafter by text reads: both are tried, the better one is used, and the other one now and then."""

from __future__ import annotations

from collections import Counter

import pytest

from draft_worker.vocabularies.prompt_choice import Prompt, PromptChoice
from draft_worker.vocabularies.shared_text import TextReading
from tests.draft_worker.vocabularies.test_text import speech


@pytest.mark.parametrize(("target", "own"), [(0.2, 0.7), (0.6, 0.1), (0.5, 0.45)])
def test_the_better_one_is_used_and_the_other_one_sixteenth_of_the_time(target: float, own: float) -> None:
    choice, used = PromptChoice(), Counter[Prompt]()
    owed = {"target": 0.0, "own": 0.0}
    for session in range(400):
        prompt = choice.choose()
        if session >= 80:
            used[prompt] += 1
        owed[prompt] += 8 * (target if prompt == "target" else own)
        accepted = int(owed[prompt])
        owed[prompt] -= accepted
        choice.observe(prompt, 8, accepted)
    better: Prompt = "own" if own > target else "target"
    assert used[better] == pytest.approx(320 * 15 / 16, abs=3)


def test_what_is_better_now_is_found_again() -> None:
    choice = PromptChoice()
    for session in range(1_200):
        prompt = choice.choose()
        right = prompt == ("own" if session < 400 else "target")
        choice.observe(prompt, 8, 7 if right else 1)
    assert Counter(choice.choose() for _ in range(16))["target"] == 15


def test_the_drafters_own_prompt_stands_in_for_the_targets() -> None:
    theirs, ours = speech("qwen", "english"), speech("llama", "code")
    prompt = theirs.encode("<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n")
    answer = theirs.encode("Hello! 日本 I am " + "very happy " * 20)
    own = ours.encode_prompt("<s>[INST] Hi there [/INST]")
    step_by_step = TextReading(theirs, ours)
    step_by_step.use_prompt(len(prompt), own)
    for count in range(0, len(answer) + 1, 3):
        ids = [*prompt, *answer[:count]]
        step_by_step.update(ids, max(0, len(ids) - 5), len(prompt))
        at_once = TextReading(theirs, ours)
        at_once.use_prompt(len(prompt), own)
        at_once.update(ids, 0, len(prompt))
        read = step_by_step.read()
        assert read is not None
        assert read == at_once.read()
        assert read[: len(own)] == own
        assert ours.spell(read[len(own) :]) == theirs.spell(answer[:count])
        assert step_by_step.length_at(len(prompt)) == (len(own), True)
        drawn = b" and glad"
        assert theirs.spell(step_by_step.tokens_of(drawn)) == drawn
    step_by_step.update(prompt[:4], 4, 4)
    step_by_step.update([*prompt, *answer], 4, len(prompt))
    assert step_by_step.read() == read_after(theirs_ids=[*prompt, *answer], prompt_tokens=len(prompt), own=own)


def read_after(theirs_ids: list[int], prompt_tokens: int, own: list[int]) -> list[int] | None:
    reading = TextReading(speech("qwen", "english"), speech("llama", "code"))
    reading.use_prompt(prompt_tokens, own)
    reading.update(theirs_ids, 0, prompt_tokens)
    return reading.read()
