"""How a pass's room for prompts is shared out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engines.runtime.plan import PromptBudget, split_budget


def test_equal_shares_and_what_short_ones_leave() -> None:
    assert split_budget([1000, 1000], 256) == [128, 128]
    assert split_budget([1000, 20, 1000], 256) == [151, 20, 85]
    assert split_budget([1000], 256) == [256]
    assert split_budget([], 256) == []


def test_a_middling_prompt_is_not_held_up_by_a_flood_of_long_ones() -> None:
    assert split_budget([*[4000] * 7, 30], 256)[-1] == 30


def test_no_share_is_too_small_to_be_worth_a_pass() -> None:
    assert split_budget([100] * 10, 64) == [16, 16, 16, 16, 0, 0, 0, 0, 0, 0]


@given(st.lists(st.integers(1, 5000), max_size=40), st.integers(16, 4096))
def test_the_budget_is_used_up_and_never_exceeded(remaining: list[int], budget: int) -> None:
    taken = split_budget(remaining, budget)
    assert all(0 <= part <= tokens for part, tokens in zip(taken, remaining, strict=True))
    assert sum(taken) == min(budget, sum(remaining))


def test_beside_streams_prompts_get_what_slows_a_pass_to_three_times_at_most() -> None:
    pace = PromptBudget(256)
    assert pace.budget(streams=True) == 256, "nothing is known yet"
    pace.record(0.030, short_tokens=4, prompt_tokens=0)
    pace.record(0.256, short_tokens=0, prompt_tokens=256)
    assert pace.budget(streams=True) == 60
    assert pace.budget(streams=False) == 256
    pace.record(0.256 * 100, short_tokens=0, prompt_tokens=256)
    assert pace.budget(streams=True) == 16, "never nothing: a prompt must get on"
