"""From vLLM's tokens, and what was proposed at which length, to rounds."""

from __future__ import annotations

from target_worker.vllm_generate import accepted_of, steps


def test_tokens_of_several_steps_are_told_apart() -> None:
    proposals = {5: [1, 2], 8: [7], 9: [4, 4], 11: [9]}
    assert list(steps(5, [1, 2, 3, 6, 4, 5], proposals)) == [(3, [1, 2]), (1, [7]), (2, [4, 4])]
    assert proposals == {11: [9]}, "what is still under way stays"


def test_a_prompts_first_token_was_not_drafted() -> None:
    assert list(steps(4, [3], {5: [1, 2]})) == [(1, [])]


def test_where_word_of_a_draft_is_missing_what_came_of_it_shows() -> None:
    assert list(steps(4, [3, 2, 1], {})) == [(3, [3, 2])]
    assert list(steps(4, [3], {})) == [(1, [])]


def test_accepted_tokens_are_the_common_beginning() -> None:
    assert accepted_of([1, 2, 3], [1, 2]) == 2
    assert accepted_of([1, 2, 3], [1, 9, 3]) == 1
    assert accepted_of([1], [1, 2, 3]) == 1
    assert accepted_of([4], []) == 0
