"""Drawing tokens by the Gumbel-max trick: argmax(processed logits + g), the lowest id on ties.

Draft and target draw with the same noise, so that close distributions draw the same token with high probability
(Daliri, Musco and Suresh: *Coupling without communication and drafter-invariant speculative decoding*, 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engines.sampling import noise
from engines.sampling.distribution import Distribution, Part
from engines.sampling.ranking import first, lowest_best
from engines.sampling.rows import SamplingRow
from engines.sampling.tiles import tiles

_FEW_ROWS = 16
"""For which the noise's keys are made number by number, as fast."""


def draw(
    distribution: Distribution,
    rows: Sequence[SamplingRow],
    stream: int = noise.DRAW,
    noise_ids: Tensor | None = None,
) -> Tensor:
    """One token a row, int64 [R]: a pure function of the row's distribution, seed and position, and the stream.

    `noise_ids` int64 [V] has the id whose noise each token takes (engines/sampling/columns.py); None: its own.
    """
    if distribution.is_certain:
        return distribution.top1()
    return draw_keyed(distribution, row_keys(rows, stream, distribution.device), noise_ids)


def draw_keyed(distribution: Distribution, keys: Tensor, noise_ids: Tensor | None = None) -> Tensor:
    """`draw` with the rows' noise keys at hand, int64 [R]."""

    return distribution.by_row(lambda part: draw_logits(part.logits, part.token_ids, keys[part.rows], noise_ids))


def draw_logits(logits: Tensor, token_ids: Tensor | None, keys: Tensor, noise_ids: Tensor | None = None) -> Tensor:
    """One token a row, int64 [r], of logits float [r, K] over ids int64 [r, K] (None: all), under keys int64 [r]."""
    if token_ids is not None:
        if token_ids.shape[-1] == 1:
            return token_ids[:, 0]
        return lowest_best(_perturbed(logits, token_ids, keys, noise_ids), token_ids)
    token = torch.zeros_like(keys)
    best = torch.full(keys.shape, -torch.inf, dtype=torch.float64, device=keys.device)
    for columns in tiles(logits):
        ids = torch.arange(columns.start, columns.stop, device=keys.device)
        perturbed = _perturbed(logits[:, columns], ids, keys, noise_ids)
        place = perturbed.argmax(dim=-1)
        value = perturbed.gather(-1, place[:, None])[:, 0]
        token = torch.where(value > best, place + columns.start, token)
        best = torch.maximum(best, value)
    return token


@dataclass(frozen=True, slots=True)
class Top2:
    """The two best perturbed tokens of each row: int64 [R] each, and how much the second falls short, float64 [R].

    `second` is −1 and `gap` +inf if only one token is left.
    """

    first: Tensor
    second: Tensor
    gap: Tensor


def draw_top2(
    distribution: Distribution,
    rows: Sequence[SamplingRow],
    stream: int = noise.DRAW,
    noise_ids: Tensor | None = None,
) -> Top2:
    """`draw`, and the runner-up: what candidates i ≥ 1 branch off to, and where (the smallest gap)."""
    keys = row_keys(rows, stream, distribution.device)

    def two(part: Part) -> Tensor:
        perturbed = _perturbed(part.logits, part.token_ids, keys[part.rows], noise_ids)
        one = lowest_best(perturbed, part.token_ids)
        ids = part.token_ids if part.token_ids is not None else torch.arange(perturbed.shape[-1], device=keys.device)
        rest = perturbed.masked_fill(ids == one[:, None], -torch.inf)
        gap = perturbed.amax(-1) - rest.amax(-1)
        other = lowest_best(rest, part.token_ids).masked_fill(gap == torch.inf, -1)
        return torch.stack([one.to(torch.float64), other.to(torch.float64), gap], dim=-1)

    one, other, gap = distribution.by_row(two).reshape(-1, 3).unbind(-1)
    return Top2(one.to(torch.int64), other.to(torch.int64), gap)


def draw_top(distribution: Distribution, rows: Sequence[SamplingRow], k: int, stream: int = noise.DRAW) -> Tensor:
    """The k best perturbed tokens of each row, best first, int64 [R, k]; −1 where fewer are left. Ties in any order."""
    keys = row_keys(rows, stream, distribution.device)

    def best(part: Part) -> Tensor:
        perturbed = _perturbed(part.logits, part.token_ids, keys[part.rows], None)
        values, ids = torch.topk(perturbed, min(k, perturbed.shape[-1]))
        if part.token_ids is not None:
            ids = part.token_ids.gather(-1, ids)
        ids = ids.masked_fill(values == -torch.inf, -1)
        return torch.nn.functional.pad(ids, (0, k - ids.shape[-1]), value=-1)

    return distribution.by_row(best).reshape(-1, k)


def row_keys(rows: Sequence[SamplingRow], stream: int, device: torch.device) -> Tensor:
    """The noise key of each row in a stream, int64 [R]."""
    if len(rows) <= _FEW_ROWS:
        keys = [noise.row_key(row.seed, stream, row.position) for row in rows]
        return torch.tensor(keys, dtype=torch.int64, device=device)
    seeds = torch.tensor([row.seed for row in rows], dtype=torch.int64, device=device)
    positions = torch.tensor([row.position for row in rows], dtype=torch.int64, device=device)
    return noise.row_keys(seeds, stream, positions)


def _perturbed(logits: Tensor, token_ids: Tensor | None, keys: Tensor, noise_ids: Tensor | None) -> Tensor:
    """Processed logits plus noise, float64 [r, K]."""
    if token_ids is None:
        token_ids = torch.arange(logits.shape[-1], device=logits.device)
    if noise_ids is not None:
        token_ids = noise_ids[token_ids]
    return noise.gumbel_from_hash(noise.hash_ids(keys, token_ids)).add_(logits)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """`logprob` float32 [R]; `rank` int64 [R], from 1; the likeliest ids int64 [R, top] and their log-probabilities."""

    logprob: Tensor
    rank: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


def _normaliser(x: Tensor) -> Tensor:
    """log Σ exp of each row, [R, 1]. On a CPU row by row: with several threads the sum over a row of many is split
    otherwise, and what the API reports of a token would depend on the rows beside it."""
    if x.device.type != "cpu":
        return torch.logsumexp(x, dim=-1, keepdim=True)
    return torch.cat([x.new_empty(0, 1), *(torch.logsumexp(row[None], dim=-1, keepdim=True) for row in x)])


def token_logprobs(logits: Tensor, token_ids: Tensor, top: int) -> TokenLogprobs:
    """What the API reports for tokens int64 [R] given the model's own logits float [R, V]; `top` alternatives each.

    The rank counts tokens with a higher logit, so that tied tokens share the best of their ranks.
    """
    x = logits.float()
    normaliser = _normaliser(x)
    chosen = x.gather(-1, token_ids[:, None])
    values, ids = first(x, min(top, x.shape[-1])) if top else (x[:, :0], token_ids[:, None][:, :0])
    return TokenLogprobs((chosen - normaliser)[:, 0], (x > chosen).sum(-1) + 1, ids, values - normaliser)
