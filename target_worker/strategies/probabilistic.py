"""`probabilistic`: speculative sampling (Leviathan et al. 2022; Chen et al. 2023).

A drafted token x is accepted with probability min(1, p(x) / q(x)); on rejection the token comes from the residual
distribution norm(max(0, p − q)) (from p if that has no mass). Lossless in distribution, if q is what x was sampled
from: it is taken as the draft worker sent it, truncated, zero outside its entries. The acceptance uniforms and the
residual's noise have streams of their own: given x, the noise that drew it is biased for every token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from engines.sampling import noise
from engines.sampling.draw import draw_logits, row_keys
from protocol.errors import BadRequest
from protocol.messages import Q_SUM_TOLERANCE, Candidate, TopK
from target_worker.strategies.drafts import DraftDistributions, Drafts, Judgement, Target, accept_prefix, at_end


def check_q(candidate: Candidate, vocabulary: int, field: str) -> None:
    """Raises BadRequest, naming a field under `field`, if a candidate's q cannot be what its tokens came from."""
    if candidate.q is None:
        raise BadRequest("strategy probabilistic needs the distribution of every drafted token", f"{field}.q")
    for place, (token_id, q) in enumerate(zip(candidate.token_ids, candidate.q, strict=True)):
        where = f"{field}.q.{place}"
        entries = dict(zip(q.token_ids, q.logprobs, strict=True))
        if len(entries) != len(q.token_ids):
            raise BadRequest("a token id occurs twice", f"{where}.token_ids")
        if max(entries) >= vocabulary:
            raise BadRequest(f"a token id is outside the vocabulary of {vocabulary}", f"{where}.token_ids")
        # An exponent over 0 is no probability; testing it first keeps exp() from overflowing.
        total = math.fsum(map(math.exp, q.logprobs)) if max(q.logprobs) <= Q_SUM_TOLERANCE else math.inf
        if not abs(total - 1.0) <= Q_SUM_TOLERANCE:  # NaN is not within the tolerance either
            raise BadRequest(f"probabilities sum to {total:.6g}, not to one", f"{where}.logprobs")
        if math.exp(entries.get(token_id, -math.inf)) == 0.0:
            raise BadRequest(f"token {token_id} has no probability in its own q", f"{field}.token_ids.{place}")


def pad_q(q: Sequence[Sequence[TopK]], device: torch.device | str = "cpu") -> DraftDistributions:
    """Checked distributions of B chains' drafted tokens as padded tensors.

    What float32 left them short of one is made up in proportion: sampling from unnormalised weights is sampling from
    the normalised ones.
    """
    width = max((len(chain) for chain in q), default=0)
    entries = max((len(top.token_ids) for chain in q for top in chain), default=1)
    ids = torch.full((len(q), width, entries), -1, dtype=torch.int64)
    probabilities = torch.zeros((len(q), width, entries), dtype=torch.float64)
    for i, chain in enumerate(q):
        for place, top in enumerate(chain):
            weights = torch.tensor(top.logprobs, dtype=torch.float64).exp_()
            ids[i, place, : len(weights)] = torch.tensor(top.token_ids)
            probabilities[i, place, : len(weights)] = weights / weights.sum()
    return DraftDistributions(ids.to(device), probabilities.to(device))


def verify(drafts: Drafts, target: Target) -> Judgement:
    """`drafts.q` is needed, checked (check_q) and padded (pad_q)."""
    assert drafts.q is not None
    rows = drafts.rows[:, :-1]
    p = target.distribution.probability_of(drafts.token_ids.flatten(), rows.flatten()).view_as(rows)
    drafted = drafts.q.token_ids == drafts.token_ids[:, :, None]
    q = drafts.q.probabilities.masked_fill(~drafted, 0.0).sum(-1)
    keys = row_keys(target.rows, noise.ACCEPT, p.device)[rows]
    uniforms = noise.uniform_from_hash(noise.hash_ids(keys.flatten(), keys.new_zeros(1))).view_as(p)
    num_accepted = accept_prefix(drafts, accepts(p, q, uniforms))
    next_token = at_end(target.own[drafts.rows], num_accepted)
    rejected = torch.nonzero(num_accepted < drafts.lengths).flatten()
    if len(rejected):
        next_token[rejected] = _draw_residual(drafts, target, rejected, num_accepted[rejected])
    return Judgement(num_accepted, next_token)


def accepts(p: Tensor, q: Tensor, uniforms: Tensor) -> Tensor:
    """u < p / q, without the division."""
    return uniforms * q < p


def log_residual(p: Tensor, q: Tensor) -> Tensor:
    """log max(0, p − q) up to a constant a row, or log p if that has no mass: float64 [r, K] each."""
    residual = (p - q).clamp_(min=0.0)
    return torch.where(residual.amax(-1, keepdim=True) > 0, residual, p).log_()


def _draw_residual(drafts: Drafts, target: Target, chains: Tensor, places: Tensor) -> Tensor:
    """One token for each chain from the residual at the place of its rejection: int64 [r]."""
    assert drafts.q is not None
    rows = drafts.rows[chains, places]
    q_ids, q = drafts.q.token_ids[chains, places], drafts.q.probabilities[chains, places]
    keys = row_keys(target.rows, noise.RESIDUAL, rows.device)[rows]
    distribution = target.distribution.rows(rows)
    tokens = torch.empty_like(rows)
    for part in distribution.parts:
        p = distribution.part_logprobs(part).exp_()
        part_ids, part_q = q_ids[part.rows], q[part.rows]
        if part.token_ids is None:
            q_there = torch.zeros_like(p).scatter_add_(-1, part_ids.clamp(min=0), part_q)
        else:
            part_ids, by_id = part_ids.sort(dim=-1)
            place = torch.searchsorted(part_ids, part.token_ids).clamp_(max=part_ids.shape[-1] - 1)
            q_there = part_q.gather(-1, by_id.gather(-1, place))
            q_there.masked_fill_(part_ids.gather(-1, place) != part.token_ids, 0.0)
        tokens[part.rows] = draw_logits(log_residual(p, q_there), part.token_ids, keys[part.rows])
    return tokens
