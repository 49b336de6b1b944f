"""How a pass's room for prompts is shared out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.runtime.pass_seconds import PassSeconds
from engines.runtime.plan import PromptBudget, split_budget
from engines.runtime.returns import Returns


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


def kinked(tokens: int) -> float:
    """A processor's pass: the second row costs as much again, those from the fourth on half as much each."""
    return {1: 0.055, 2: 0.092, 3: 0.098}.get(tokens, 0.040 + 0.018 * tokens)


def test_a_line_through_the_first_two_rows_says_nothing_of_many() -> None:
    """Of a slow model no more were measured: by these two a pass of twelve tokens would be long enough."""
    pace = PromptBudget(256, {tokens: kinked(tokens) for tokens in (1, 2)})
    assert not pace.passes.known
    assert pace.enough == math.inf
    for _ in range(40):
        pace.record(kinked(1), short_tokens=1, prompt_tokens=0)
    assert pace.enough == math.inf
    for tokens in (32, 24, 28, 32, 8):
        pace.record(kinked(tokens), short_tokens=tokens, prompt_tokens=0)
    assert pace.passes.per_token == pytest.approx(0.018, rel=0.1)
    assert pace.passes.fixed == pytest.approx(0.050, rel=0.2)
    assert 50 < pace.enough < 80


def test_sizes_that_were_measured_are_scaled_and_not_learned_anew() -> None:
    measured = {tokens: 0.02 + 0.001 * tokens for tokens in (1, 2, 4, 8, 16, 32)}
    passes = PassSeconds(measured)
    for _ in range(100):
        passes.observe(20, 2 * 0.04)
    assert passes.fixed == pytest.approx(0.04, rel=0.01)
    assert passes.per_token == pytest.approx(0.002, rel=0.01)


def test_one_slow_pass_of_a_new_size_is_soon_forgotten() -> None:
    passes = PassSeconds({1: 0.055, 2: 0.092})
    passes.observe(16, 10 * kinked(16))
    for _ in range(30):
        passes.observe(16, kinked(16))
    assert passes.per_token == pytest.approx(0.019, rel=0.35)


def test_nobody_is_waited_for_while_it_is_not_known_what_passes_take() -> None:
    """By its first two rows a pass takes 50 ms whatever is in it."""
    for measured, waits in (({1: 0.052, 2: 0.054}, False), ({1: 0.052, 2: 0.054, 8: 0.066}, True)):
        returns = Returns(PassSeconds(measured))
        for at in (0.0, 0.06):
            returns.came(1, at)
            returns.left(1, at + 0.05, 1)
        returns.came(2, 0.115)
        assert (returns.wait(0.115, 1) > 0.0) is waits
