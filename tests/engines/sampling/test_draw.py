"""The draw: the right token, the right distribution, and the coupling of draft and target."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from engines.sampling import noise
from engines.sampling.distribution import Distribution
from engines.sampling.draw import draw, draw_keyed, draw_top2, token_logprobs
from engines.sampling.process import process
from tests.engines.sampling.helpers import gumbel, sampling_row


def plain_draw(distribution: Distribution, row: int, seed: int, position: int, stream: int) -> list[tuple[float, int]]:
    """Every token that is left as (−perturbed logit, id), best first."""
    part = next(part for part in distribution.parts if row in part.rows.tolist())
    place = part.rows.tolist().index(row)
    ids = list(range(distribution.vocabulary)) if part.token_ids is None else part.token_ids[place].tolist()
    found = []
    for token_id, logit in zip(ids, part.logits[place].tolist(), strict=True):
        g = gumbel(torch.tensor([seed]), stream, torch.tensor([position]), torch.tensor([token_id]))
        if logit > -math.inf:
            found.append((-(logit + g.item()), token_id))
    return sorted(found)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(1, 40),
    stream=st.sampled_from([noise.DRAW, noise.ACCEPT, noise.RESIDUAL]),
    logits=st.lists(st.one_of(st.integers(-5, 5).map(float), st.just(-math.inf)), min_size=1, max_size=20).filter(
        lambda values: max(values) > -math.inf
    ),
    parameters=st.sampled_from(({}, {"top_p": 0.7}, {"top_k": 3}, {"temperature": 0.0}, {"temperature": 0.4})),
)
def test_draws_are_the_best_perturbed_tokens(
    seed: int, position: int, stream: int, logits: list[float], parameters: dict[str, Any]
) -> None:
    rows = [sampling_row(seed=seed, position=position, **parameters)] * 2
    distribution = process(torch.tensor([logits, logits]), rows)
    best = plain_draw(distribution, 0, seed, position, stream)
    assert draw(distribution, rows, stream).tolist() == [best[0][1]] * 2
    top2 = draw_top2(distribution, rows, stream)
    assert top2.first.tolist() == [best[0][1]] * 2
    if len(best) == 1:
        assert top2.second[0] == -1
        assert top2.gap[0] == math.inf
    else:
        assert top2.second[0] == best[1][1]
        assert top2.gap[0] == pytest.approx(best[1][0] - best[0][0])


def test_equal_perturbed_logits_go_to_the_lowest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "gumbel_from_hash", lambda h: torch.zeros(h.shape, dtype=torch.float64))
    logits = torch.zeros(1, 150_000)  # several tiles: the tie is between two of them
    logits[0, [70, 140_000]] = 1.0
    for parameters in ({}, {"top_k": 2}, {"min_p": 0.9}):
        rows = [sampling_row(**parameters)]
        assert draw(process(logits, rows), rows).tolist() == [70]
        assert draw_top2(process(logits, rows), rows).second.tolist() == [140_000]


def test_greedy_takes_the_lowest_of_equal_logits_at_any_place() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 9001, generator=generator).round()
    rows = [sampling_row(seed=i, temperature=0.0) for i in range(64)]
    best = [row.index(max(row)) for row in logits.tolist()]
    assert draw(process(logits, rows), rows).tolist() == best


@pytest.mark.parametrize("parameters", [{}, {"temperature": 0.6}, {"top_p": 0.8}, {"top_k": 3, "temperature": 1.7}])
def test_frequencies_over_seeds_are_the_distribution(parameters: dict[str, Any]) -> None:
    logits, seeds = torch.tensor([[2.0, 1.0, 0.3, -1.0, 0.0, -2.5]]), torch.arange(60_000)
    distribution = process(logits, [sampling_row(**parameters)])
    counts = torch.bincount(draws(distribution, seeds), minlength=6).double()
    p = distribution.logprobs()[0].exp()
    assert bool((counts[p == 0] == 0).all())
    assert stats.chisquare(counts[p > 0].numpy(), (p[p > 0] / p.sum() * len(seeds)).numpy()).pvalue > 1e-4


def draws(distribution: Distribution, seeds: Tensor, stream: int = noise.DRAW) -> Tensor:
    """The draws of one row's distribution under many seeds, by the production code."""
    many = distribution.rows(torch.zeros_like(seeds))
    return draw_keyed(many, noise.row_keys(seeds, stream, torch.full_like(seeds, 9)))


def agreement(p: Tensor, q: Tensor) -> float:
    """Daliri et al. 2024: Σₓ 1 / Σ_y max(p_y / pₓ, q_y / qₓ), over the tokens that both can draw."""
    both = torch.nonzero((p > 0) & (q > 0)).flatten()
    return sum(1 / float(torch.maximum(p / p[x], q / q[x]).sum()) for x in both)


PAIRS: list[tuple[list[float], list[float], dict[str, Any]]] = [
    ([1.0, 0.0, -1.0, 0.5, 0.2], [1.0, 0.0, -1.0, 0.5, 0.2], {}),
    ([1.0, 0.0, -1.0, 0.5, 0.2], [0.8, 0.3, -1.2, 0.1, 0.6], {}),
    ([2.0, 0.0, -1.0, 0.5, 0.2], [-1.0, 1.0, 1.5, 0.0, 0.0], {}),
    ([2.0, 1.0, -1.0, 0.5, 0.2], [1.0, 2.0, 0.5, 0.0, 0.0], {"top_p": 0.8}),
    ([2.0, 1.0, -1.0, 0.5, 0.2], [1.0, 2.0, 0.5, 0.0, 0.0], {"temperature": 0.4, "top_k": 3}),
]
COUPLING_SEEDS = 200_000


def measured_agreement(p: Distribution, q: Distribution, draft_stream: int = noise.DRAW) -> float:
    seeds = torch.arange(COUPLING_SEEDS)
    return float((draws(p, seeds) == draws(q, seeds, draft_stream)).double().mean())


@pytest.mark.parametrize(("target", "draft", "parameters"), PAIRS)
def test_coupling_has_the_agreement_of_its_formula(
    target: list[float], draft: list[float], parameters: dict[str, Any]
) -> None:
    p, q = (process(torch.tensor([logits]), [sampling_row(**parameters)]) for logits in (target, draft))
    expected = agreement(p.logprobs()[0].exp(), q.logprobs()[0].exp())
    bound = 4.5 * math.sqrt(expected * (1 - expected) / COUPLING_SEEDS) + 1e-12
    assert abs(measured_agreement(p, q) - expected) <= bound


@pytest.mark.parametrize(("target", "draft", "parameters"), PAIRS)
def test_a_broken_coupling_misses_the_formula(
    target: list[float], draft: list[float], parameters: dict[str, Any]
) -> None:
    p, q = (process(torch.tensor([logits]), [sampling_row(**parameters)]) for logits in (target, draft))
    expected = agreement(p.logprobs()[0].exp(), q.logprobs()[0].exp())
    bound = 4.5 * math.sqrt(expected * (1 - expected) / COUPLING_SEEDS)
    assert abs(measured_agreement(p, q, draft_stream=noise.ACCEPT) - expected) > bound


def test_api_logprobs_are_of_the_raw_logits() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0], [3.0, 3.0, 3.0, 3.0]])
    found = token_logprobs(logits, torch.tensor([2, 3]), top=3)
    assert torch.allclose(found.logprob, torch.stack([logits[0].log_softmax(-1)[2], torch.tensor(0.25).log()]))
    assert found.rank.tolist() == [3, 1]
    assert found.top_ids.tolist() == [[1, 3, 2], [0, 1, 2]]
    assert torch.allclose(found.top_logprobs[0], logits[0].log_softmax(-1)[[1, 3, 2]])
    assert token_logprobs(logits, torch.tensor([2, 3]), top=0).top_ids.shape == (2, 0)
    assert token_logprobs(logits, torch.tensor([2, 3]), top=9).top_ids.shape == (2, 4)


def test_api_logprobs_do_not_depend_on_the_rows_beside() -> None:
    logits = 4.0 * torch.randn(60, 49_152, generator=torch.Generator().manual_seed(2))
    ids, threads = torch.zeros(60, dtype=torch.int64), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = token_logprobs(logits, ids, top=1)
        for row in range(60):
            alone = token_logprobs(logits[row : row + 1], ids[:1], top=1)
            assert torch.equal(alone.logprob[0], together.logprob[row])
            assert torch.equal(alone.top_logprobs[0], together.top_logprobs[row])
    finally:
        torch.set_num_threads(threads)
    assert token_logprobs(logits[:0], ids[:0], top=1).logprob.shape == (0,)


def test_logprobs_of_ids_outside_the_vocabulary() -> None:
    distribution = process(torch.zeros(2, 4), [sampling_row(), sampling_row(top_k=2)])
    assert distribution.logprob_of(torch.tensor([4, -1])).tolist() == [-math.inf, -math.inf]
    assert distribution.probability_of(torch.tensor([0, 0])).tolist() == pytest.approx([0.25, 0.5])
    assert distribution.top1().tolist() == [0, 0]
