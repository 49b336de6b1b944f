"""Distributions in parts, dense, cut and of one token: the same numbers in whatever form a row is kept."""

from __future__ import annotations

import math

import pytest
import torch

from engines.sampling.distribution import Distribution, Part

INF = math.inf
# Row 1 is dense, row 2 cut to three tokens, row 0 to a single one.
DENSE = torch.tensor([[0.5, -1.0, -INF, 2.0, 2.0]])
CUT_IDS, CUT = torch.tensor([[4, 1, 2]]), torch.tensor([[1.0, 1.0, -INF]])


@pytest.fixture
def mixed() -> Distribution:
    return Distribution(
        3,
        5,
        (
            Part(torch.tensor([1]), DENSE, None),
            Part(torch.tensor([2]), CUT, CUT_IDS),
            Part(torch.tensor([0]), torch.tensor([[7.0]]), torch.tensor([[3]])),
        ),
    )


EXPECTED = torch.stack(
    [
        torch.tensor([-INF, -INF, -INF, 0.0, -INF], dtype=torch.float64),
        DENSE[0].double().log_softmax(-1),
        torch.tensor([-INF, -math.log(2), -INF, -INF, -math.log(2)], dtype=torch.float64),
    ]
)


def test_rows_come_in_their_own_order(mixed: Distribution) -> None:
    assert torch.allclose(mixed.logprobs(), EXPECTED, atol=1e-12)
    assert mixed.logprobs()[0, 3] == 0.0, "a lone token is certain, not nearly"


def test_a_tokens_probability_is_that_of_its_row(mixed: Distribution) -> None:
    rows = torch.arange(3).repeat_interleave(5)
    ids = torch.arange(5).repeat(3)
    assert torch.equal(mixed.logprob_of(ids, rows), mixed.logprobs().flatten())
    assert mixed.probability_of(torch.tensor([3, 2, 1])).tolist() == pytest.approx([1.0, 0.0, 0.5])
    assert mixed.logprob_of(torch.tensor([5, -1, 99]), torch.tensor([1, 1, 2])).tolist() == [-INF] * 3


def test_the_likeliest_is_the_lowest_id_on_ties(mixed: Distribution) -> None:
    assert mixed.top1().tolist() == [3, 3, 1]


def test_rows_may_be_picked_in_any_order_and_twice(mixed: Distribution) -> None:
    index = torch.tensor([2, 0, 2, 1])
    picked = mixed.rows(index)
    assert picked.num_rows == 4
    assert torch.equal(picked.logprobs(), mixed.logprobs()[index])
    assert torch.equal(picked.top1(), mixed.top1()[index])


def test_a_cut_keeps_the_likeliest_and_sums_to_one(mixed: Distribution) -> None:
    ids, logprobs = zip(*mixed.truncate(2).entries(), strict=True)
    assert list(ids) == [[3], [3, 4], [4, 1]]
    assert [sum(map(math.exp, row)) for row in logprobs] == pytest.approx([1.0] * 3)
    whole = mixed.truncate(99).entries()
    assert [sorted(row) for row, _ in whole] == [[3], [0, 1, 3, 4], [1, 4]], "removed tokens are not listed"


def test_no_rows_are_no_trouble() -> None:
    empty = Distribution(0, 5, ())
    assert empty.top1().tolist() == []
    assert empty.entries() == []
