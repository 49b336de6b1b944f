"""Which outcomes drafts are prepared for, and how many tokens of each."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from draft_worker.fan_out import GuessRates, laid_out, likeliest, worths
from draft_worker.outcomes import BONUS, Guess


def test_guesses_go_where_they_are_likeliest() -> None:
    rates = GuessRates()
    surely = [guess for _, guess in likeliest([0.98, 0.96, 0.94], rates, 3)]
    assert surely == [Guess(BONUS, rank) for rank in range(3)]
    geometric = [guess for _, guess in likeliest([0.5, 0.25, 0.125, 0.0625], rates, 6)]
    counts = [sum(guess.place == place for guess in geometric) for place in range(4)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[1] > 0
    never = [guess for _, guess in likeliest([0.0, 0.0], rates, 4)]
    assert all(guess.place == 0 for guess in never)
    assert [guess.place for _, guess in likeliest([], rates, 2)] == [BONUS, BONUS]


def test_rates_of_guesses_are_learned_apart() -> None:
    rates = GuessRates()
    for _ in range(60):
        rates.observe(left=True, rank=1)
        rates.observe(left=False, rank=None)
    assert rates.rates(True)[1] > 0.8 > 0.2 > rates.rates(True)[0]
    assert max(rates.rates(False)) < 0.1


def test_time_goes_where_it_brings_most() -> None:
    outcomes = [(0.5, Guess(BONUS, 0)), (0.2, Guess(0, 0)), (0.1, Guess(2, 0))]

    def tokens(seconds: Callable[[int], float], time: float, most: int = 128) -> list[tuple[int, int]]:
        found = laid_out(outcomes, 4, [seconds(1)] * 4, most, seconds, time, lambda tokens: tokens * seconds(1))
        return [(guess.place, guess.tokens) for guess in found]

    rows_are_free, rows_cost = (lambda rows: 0.01), (lambda rows: 0.004 + 0.006 * rows)
    assert tokens(rows_are_free, math.inf) == [(BONUS, 4), (0, 4), (2, 4)]
    assert tokens(rows_are_free, math.inf, most=9) == [(BONUS, 4), (0, 4), (2, 1)], "saves more than 3, 3, 3"
    assert tokens(rows_are_free, 0.035) == [(BONUS, 2), (0, 2), (2, 2)], "the draft's pass and two more"
    assert tokens(rows_cost, 0.045) == [(BONUS, 3)], "the draft's last token, then three more"
    assert tokens(rows_cost, 0.0) == [(BONUS, 1)], "one at least"
    assert tokens(rows_cost, math.inf) == [(BONUS, 4), (0, 4), (2, 4)], "there is time for all"
    outcomes[1:] = [(0.03, Guess(0, 0)), (0.03, Guess(2, 0))]
    assert tokens(rows_cost, math.inf) == [(BONUS, 4)], "they save little more, and the draft had to be read again"
    outcomes[1:] = [(0.2, Guess(0, 0)), (0.1, Guess(2, 0))]
    more_than_one_cost = lambda rows: 0.02 if rows == 1 else 0.06 + 0.008 * rows  # noqa: E731
    assert tokens(more_than_one_cost, 0.21) == [(BONUS, 4)], "as a small model on a CPU: no straight line"
    rows_cost_little = lambda rows: 0.009 + 0.001 * rows  # noqa: E731
    assert [place for place, _ in tokens(rows_cost_little, 0.1)] == [BONUS, 0, 2]


def test_where_places_are_known_outcomes_grow_in_the_first_pass_but_those_that_follow_the_draft() -> None:
    outcomes = [(0.5, Guess(BONUS, 0)), (0.2, Guess(0, 0)), (0.1, Guess(2, 0))]

    def tokens(time: float, known: bool) -> list[tuple[int, int]]:
        found = laid_out(outcomes, 4, [0.01] * 4, 128, lambda rows: 0.01, time, lambda tokens: 1.0, known)
        return [(guess.place, guess.tokens) for guess in found]

    assert tokens(0.035, known=False) == [(BONUS, 2), (0, 2), (2, 2)]
    assert tokens(0.035, known=True) == [(BONUS, 2), (0, 3), (2, 3)]
    assert tokens(0.015, known=True) == [(0, 1), (2, 1)]
    assert tokens(0.015, known=False) == [(BONUS, 1)], "one at least"


def test_tokens_at_little_cost_do_not_take_the_time_of_the_likeliest_drafts_last_pass() -> None:
    outcomes = [(0.4, Guess(BONUS, 0)), (0.1, Guess(0, 0)), (0.08, Guess(1, 0)), (0.06, Guess(2, 0))]
    seconds = lambda rows: 0.04 + 0.0003 * rows  # noqa: E731
    found = laid_out(outcomes, 4, [0.041] * 4, 128, seconds, 0.218, lambda tokens: tokens * seconds(1), known=True)
    assert [guess.tokens for guess in found] == [4, 4, 4, 3], "not 3, 4, 4, 4"


def test_chains_prepare_as_many_outcomes_as_there_is_time_for_one_after_the_other() -> None:
    outcomes = [(0.5, Guess(BONUS, 0)), (0.1, Guess(0, 0)), (0.06, Guess(BONUS, 1)), (0.05, Guess(2, 0))]

    def told(time: float, known: bool = True, rows: float = 0.0) -> list[tuple[int, int, int]]:
        seconds = lambda count: 0.01 + rows * count  # noqa: E731
        drawing = lambda tokens: 0.002 * tokens  # noqa: E731
        found = laid_out(outcomes, 4, [0.002] * 4, 128, seconds, time, drawing, known, chains=True)
        return [(guess.place, guess.rank, guess.tokens) for guess in found]

    assert told(0.0105) == [(BONUS, 0, 4)]
    assert told(0.019) == [(BONUS, 0, 4), (0, 0, 4)]
    assert told(0.035) == [(BONUS, 0, 4), (0, 0, 4), (BONUS, 1, 4), (2, 0, 4)]
    assert told(0.035, known=False) == [(BONUS, 0, 4)]
    assert told(0.035, rows=0.004) == [(BONUS, 0, 4)], "the draft would have to be read again for less than it brings"


def test_chains_abreast_prepare_as_many_tokens_for_each_outcome_in_the_time_of_one() -> None:
    outcomes = [(0.5, Guess(BONUS, 0)), (0.1, Guess(0, 0)), (0.06, Guess(BONUS, 1)), (0.05, Guess(2, 0))]

    def told(time: float, abreast: int = 8, most: int = 128, known: bool = True) -> list[tuple[int, int, int]]:
        seconds = lambda count: 0.01 + 0.004 * count  # noqa: E731
        drawing = lambda tokens: 0.002 * tokens  # noqa: E731
        found = laid_out(outcomes, 4, [0.002] * 4, most, seconds, time, drawing, known, True, abreast)
        assert all(guess.in_turn for guess in found)
        return [(guess.place, guess.rank, guess.tokens) for guess in found]

    assert told(0.0105) == [(BONUS, 0, 4), (0, 0, 4), (BONUS, 1, 4), (2, 0, 4)]
    assert told(0.0065) == [(BONUS, 0, 2), (0, 0, 2), (BONUS, 1, 2), (2, 0, 2)]
    assert told(0.0105, abreast=2) == [(BONUS, 0, 4), (0, 0, 4)]
    assert told(0.0105, most=12) == [(BONUS, 0, 4), (0, 0, 4), (BONUS, 1, 4)]
    assert told(0.0105, known=False) == [(BONUS, 0, 4)]


def test_a_whole_draft_for_the_next_outcome_comes_before_a_token_more_for_the_first() -> None:
    outcomes = [(0.4, Guess(BONUS, 0)), (0.2, Guess(0, 0)), (0.15, Guess(2, 0))]
    rows_cost = lambda rows: 0.04 + 0.005 * rows  # noqa: E731

    def tokens(worth: list[float]) -> list[int]:
        return [
            guess.tokens
            for guess in laid_out(outcomes, 3, worth, 128, rows_cost, 0.25, lambda tokens: tokens * rows_cost(1))
        ]

    right = [0.7**place for place in range(1, 7)]
    assert tokens(worths(6, 0.04, 0.0, right, pace=0.1)) == [4], "each is worth a pass"
    assert tokens(worths(2, 0.04, 0.0, right, pace=0.02)) == [2, 2, 2]
    outcomes = [(0.5, Guess(0, 0)), (0.2, Guess(0, 1)), (0.1, Guess(0, 2))]
    worth = worths(2, 0.04, 0.0, [0.5**place for place in range(1, 7)], pace=0.02)
    found = laid_out(outcomes, 1, worth, 128, lambda rows: 0.005 + 0.005 * rows, 0.1, lambda tokens: 0.01 * tokens)
    assert [guess.tokens for guess in found] == [2, 2, 2], "within a tree, too"


def test_what_a_prepared_token_saves() -> None:
    right = [0.8, 0.6, 0.5, 0.3]
    assert worths(2, 0.04, 0.0, right, 0.1) == [0.04, 0.04, 0.04, 0.03]
    assert worths(2, 0.04, 0.02, right, 0.1) == [0.05, 0.05, 0.05, 0.03]
    assert worths(0, 0.04, 0.02, right, 0.1) == pytest.approx([0.08, 0.06, 0.05, 0.03])
