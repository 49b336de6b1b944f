"""The joint distribution of three tokens under the lossless strategies is the target's; others are detected."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from basics.names import Strategy
from engines.sampling import noise
from target_worker.strategies import STRATEGIES, probabilistic
from target_worker.strategies.drafts import DraftDistributions
from tests.target_worker.strategies import simulator
from tests.target_worker.strategies.simulator import g_test, models, simulate

RUNS = 50_000
BROKEN_RUNS = 20_000
FAR = 1e-4  # seeds are fixed: a p-value under this is a defect, not bad luck
LOSSLESS = [name for name, strategy in STRATEGIES.items() if strategy.always_lossless]


def test_the_set_up_is_a_hard_one() -> None:
    both = models()
    assert float(both.total_variation().min()) >= 0.3
    p, q = (d.logprobs()[: simulator.INNER] for d in (both.target, both.draft))
    assert bool((p.isinf().any(-1)).any()), "top-p removes tokens"
    assert bool((q.isinf().sum(-1) >= 2).all()), "q is truncated"
    assert bool((p.isinf() & ~q.isinf()).any()), "q has tokens that the target can't draw"


@pytest.mark.parametrize("top_p", [0.93, 1.0])
@pytest.mark.parametrize("strategy", LOSSLESS)
def test_three_tokens_have_the_targets_joint_distribution(strategy: Strategy, top_p: float) -> None:
    both = models(top_p)
    found = simulate(strategy, RUNS, both)
    assert found.drafted_again > RUNS // 10, "positions are drafted again after a rejection"
    assert 0.1 < found.acceptance_rate < 0.8
    assert g_test(found.counts(), both.exact_joint()) > FAR


def test_the_g_test_detects_a_nearby_distribution() -> None:
    both = models()
    expected = both.exact_joint()
    assert (
        g_test(
            torch.multinomial(expected, RUNS, True, generator=torch.Generator().manual_seed(0)).bincount(
                minlength=len(expected)
            ),
            expected,
        )
        > FAR
    )
    nearby = torch.where(expected > 0, expected * 0.97 + 0.03 / (expected > 0).sum(), 0.0)
    assert g_test((nearby * RUNS).round().long(), expected) < FAR


Break = Callable[[pytest.MonkeyPatch], None]


def from_p(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(probabilistic, "log_residual", lambda p, q: p.log())


def residual_on_draws_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(noise, "RESIDUAL", noise.DRAW)


def residual_on_the_acceptance_uniforms(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(noise, "RESIDUAL", noise.ACCEPT)


def acceptance_on_draws_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(noise, "ACCEPT", noise.DRAW)


def ratio_without_q(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(probabilistic, "accepts", lambda p, q, u: u < p)


def ratio_a_little_high(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(probabilistic, "accepts", lambda p, q, u: u * q < p * 1.1)


def noise_blind_to_position(patch: pytest.MonkeyPatch) -> None:
    real = noise.row_keys

    def keys(seeds: Tensor, stream: int, positions: Tensor) -> Tensor:
        return real(seeds, stream, torch.zeros_like(positions))

    patch.setattr(noise, "row_keys", keys)


def noise_shared_by_pairs_of_tokens(patch: pytest.MonkeyPatch) -> None:
    real = noise.hash_ids
    patch.setattr(noise, "hash_ids", lambda keys, ids: real(keys, ids // 2))


def q_not_as_it_was_sampled(patch: pytest.MonkeyPatch) -> None:
    real = simulator.sent_q

    def flattened(*arguments: object) -> DraftDistributions:
        q = real(*arguments)  # type: ignore[arg-type]
        weights = q.probabilities.sqrt()
        return DraftDistributions(q.token_ids, weights / weights.sum(-1, keepdim=True))

    patch.setattr(simulator, "sent_q", flattened)


@pytest.mark.parametrize(
    ("strategy", "broken"),
    [
        ("probabilistic", from_p),
        ("probabilistic", residual_on_draws_noise),
        ("probabilistic", residual_on_the_acceptance_uniforms),
        ("probabilistic", acceptance_on_draws_noise),
        ("probabilistic", ratio_without_q),
        ("probabilistic", ratio_a_little_high),
        ("probabilistic", noise_blind_to_position),
        ("probabilistic", noise_shared_by_pairs_of_tokens),
        ("probabilistic", q_not_as_it_was_sampled),
        ("deterministic", noise_blind_to_position),
        ("deterministic", noise_shared_by_pairs_of_tokens),
    ],
)
def test_breaking_it_on_purpose_is_noticed(strategy: Strategy, broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    both = models()
    assert g_test(simulate(strategy, BROKEN_RUNS, both).counts(), both.exact_joint()) < FAR
