"""Acceptance by position: what is learned from rounds, and what is not."""

from __future__ import annotations

import pytest

from server.rounds.adaptive.acceptance import Acceptance


def test_a_round_for_which_nothing_was_asked_teaches_nothing() -> None:
    """A drafter that chooses its own γ may choose 0."""
    seen = Acceptance(fading=0.9, strength=4.0)
    before = (seen.rates(4), seen.fill(), seen.expected_tokens(4))
    seen.observe(asked=0, drafted=0, accepted=0)
    assert (seen.rates(4), seen.fill(), seen.expected_tokens(4)) == before
    assert seen.rounds == 0


def test_rates_are_of_the_positions_that_were_reached() -> None:
    """Without fading they are the Beta posterior's means: accepted over reached, the prior counting `strength`."""
    seen = Acceptance(fading=1.0, strength=2.0)
    for accepted in (3, 1, 0, 3):
        seen.observe(asked=3, drafted=3, accepted=accepted)
    first = (3 + 2 * 0.7) / (4 + 2)  # reached in all four rounds
    second = (2 + 2 * first) / (3 + 2)  # in the three whose first token was accepted
    third = (2 + 2 * second) / (2 + 2)  # in the two whose second was accepted too
    assert seen.rates(3) == pytest.approx([first, second, third])
    assert seen.expected_tokens(2) == pytest.approx([1.0, 1.0 + first, 1.0 + first + first * second])


def test_tokens_that_did_not_come_count_as_not_accepted() -> None:
    """What is estimated is the yield of asking."""
    short, whole = (Acceptance(fading=1.0, strength=2.0) for _ in range(2))
    for _ in range(20):
        short.observe(asked=4, drafted=2, accepted=2)
        whole.observe(asked=4, drafted=4, accepted=4)
    assert short.rates(4)[1] == whole.rates(4)[1]
    assert short.rates(4)[2] < 0.2 < 0.9 < whole.rates(4)[2]
    assert short.fill() == pytest.approx((20 * 0.5 + 2.0) / 22)
    assert whole.fill() == 1.0


def test_older_rounds_fade() -> None:
    seen = Acceptance(fading=0.5, strength=1.0)
    for accepted in [0] * 20 + [1] * 5:
        seen.observe(asked=1, drafted=1, accepted=accepted)
    assert seen.rates(1)[0] > 0.85


def test_a_request_starts_from_what_its_pair_knows() -> None:
    pair = Acceptance(fading=1.0, strength=2.0)
    for _ in range(200):
        pair.observe(asked=2, drafted=2, accepted=1)
    request = Acceptance(fading=0.9, strength=4.0, prior=pair)
    assert request.rates(2) == pytest.approx(pair.rates(2))
    assert request.rates(2)[0] > 0.95
    assert request.rates(2)[1] < 0.05
