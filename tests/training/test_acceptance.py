"""How many tokens a round would bring, measured without rounds."""

from __future__ import annotations

import pytest
import torch

from training.acceptance import coupled_matches, tokens_a_round


def test_rounds_are_counted_as_speculative_decoding_makes_them() -> None:
    assert tokens_a_round([True, True, True, False, True, False, False], 3) == (7, 3)
    assert tokens_a_round([False] * 4, 3) == (4, 4)
    assert tokens_a_round([], 3) == (0, 0)


def test_coupled_draws_match_as_often_as_gumbel_draws_do() -> None:
    generator = torch.Generator().manual_seed(1)
    target, student = torch.tensor([1.0, 0.2, -0.5, 0.0]), torch.tensor([0.3, 0.9, -0.2])
    kept = torch.tensor([0, 1, 3])
    count, heat = 40_000, 0.7
    noise = -torch.empty(count, 4).exponential_(generator=generator).log()
    theirs = (target / heat + noise).argmax(-1)
    mine = kept[(student / heat + noise[:, kept]).argmax(-1)]
    expected = (mine == theirs).float().mean()
    again = (target / heat - torch.empty(count, 4).exponential_(generator=generator).log()).argmax(-1)
    found = (
        coupled_matches(student.expand(count, 3), target.expand(count, 4), again, kept, heat, generator).float().mean()
    )
    assert found == pytest.approx(float(expected), abs=0.012)
