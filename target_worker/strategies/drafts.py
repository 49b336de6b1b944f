"""What the strategies judge (drafted chains, the target's side) and what they find (outcomes, verdicts, decisions).

Tensors are over B chains, padded to γ drafted tokens: the candidates of one request or of many, all judged at once. A
position of a chain refers to a row of the target's logits, so that candidates which share tokens share rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engines.sampling.distribution import Distribution
from engines.sampling.rows import SamplingRow


@dataclass(frozen=True, slots=True)
class Target:
    """The target's T rows: its distributions, what decided them, and its own draws (draw.draw), int64 [T]."""

    distribution: Distribution
    rows: Sequence[SamplingRow]
    own: Tensor


@dataclass(frozen=True, slots=True)
class DraftDistributions:
    """q at each drafted position, as sent: ids int64 [B, γ, K] (−1: padding) and float64 [B, γ, K], which sums to 1."""

    token_ids: Tensor
    probabilities: Tensor


@dataclass(frozen=True, slots=True)
class Drafts:
    """B chains. `token_ids` int64 [B, γ], padded with −1 from `lengths` int64 [B] on.

    `rows` int64 [B, γ + 1]: the target row whose distribution each drafted token, and then the bonus token, comes
    from; padding may name any row. `threshold` float64 [B] and `q` for the strategies that need them.
    """

    token_ids: Tensor
    lengths: Tensor
    rows: Tensor
    q: DraftDistributions | None = None
    threshold: Tensor | None = None

    @property
    def present(self) -> Tensor:
        """Which places hold a drafted token, bool [B, γ]."""
        return torch.arange(self.token_ids.shape[1], device=self.lengths.device) < self.lengths[:, None]


@dataclass(frozen=True, slots=True)
class Judgement:
    """For each chain the length of its accepted prefix, int64 [B], and the token after that, int64 [B]."""

    num_accepted: Tensor
    next_token: Tensor


def pad_drafts(
    token_ids: Sequence[Sequence[int]],
    rows: Sequence[Sequence[int]],
    device: torch.device | str = "cpu",
    q: DraftDistributions | None = None,
    threshold: Sequence[float] | None = None,
) -> Drafts:
    """Chains of any lengths, each with one more row than tokens, as padded tensors."""
    width = max((len(ids) for ids in token_ids), default=0)
    for ids, ids_rows in zip(token_ids, rows, strict=True):
        if len(ids_rows) != len(ids) + 1:
            raise ValueError(f"{len(ids_rows)} rows for {len(ids)} drafted tokens: one more is needed")
    return Drafts(
        torch.tensor([[*ids, *[-1] * (width - len(ids))] for ids in token_ids], dtype=torch.int64, device=device),
        torch.tensor([len(ids) for ids in token_ids], dtype=torch.int64, device=device),
        torch.tensor([[*r, *[r[-1]] * (width + 1 - len(r))] for r in rows], dtype=torch.int64, device=device),
        q,
        None if threshold is None else torch.tensor(threshold, dtype=torch.float64, device=device),
    )


def accept_prefix(drafts: Drafts, good: Tensor) -> Tensor:
    """From a verdict on every place, bool [B, γ], the length of each chain's accepted prefix, int64 [B]."""
    return (good & drafts.present).cumprod(dim=-1).sum(dim=-1)


def at_end(values: Tensor, num_accepted: Tensor) -> Tensor:
    """From [B, γ + 1] each chain's value at the place after its accepted prefix, [B]."""
    return values.gather(-1, num_accepted[:, None])[:, 0]
