"""min_p, top_k and top_p: how many of a row's tokens, in their order, are left."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engines.sampling import mass
from engines.sampling.distribution import Part
from engines.sampling.ranking import leading, ranked
from engines.sampling.rows import SamplingRow

LEADING = 1024
"""How many tokens are ranked before ranking all of them, which is only done for rows whose cut lies beyond these."""


def is_cut(row: SamplingRow, vocabulary: int) -> bool:
    s = row.sampling
    return s.min_p > 0.0 or s.top_p < 1.0 or 0 < s.top_k < vocabulary


def cut(x: Tensor, rows: Sequence[SamplingRow], places: Tensor) -> list[Part]:
    """Tempered float32 [r, V] and the rows it belongs to, at `places` [r] of the distribution, → sparse parts.

    min_p keeps p ≥ min_p · max p; top_k the first k in order; top_p the shortest beginning of the order whose mass
    reaches top_p of the mass that min_p and top_k left.
    """
    vocabulary = x.shape[-1]
    values, ids, certain = leading(x, _width(rows, vocabulary))
    count, known = _Cuts.of(rows, x.device).count(values, x)
    if values.shape[-1] == vocabulary:
        return [_part(places, values, ids, count)]
    short = ~known | (count > certain)
    if not bool(short.any()):
        return [_part(places, values, ids, count)]
    parts = []
    enough = torch.nonzero(~short).flatten()
    if len(enough):
        parts.append(_part(places[enough], values[enough], ids[enough], count[enough]))
    beyond = torch.nonzero(short).flatten()
    rest = x[beyond]
    values, ids = ranked(rest)
    count, _ = _Cuts.of([rows[i] for i in beyond.tolist()], x.device).count(values, rest)
    return [*parts, _part(places[beyond], values, ids, count)]


def _width(rows: Sequence[SamplingRow], vocabulary: int) -> int:
    """How many tokens to rank first: no more than top_k may keep, and one to see a tie by."""
    return min(max(row.sampling.top_k + 1 if row.sampling.top_k else LEADING for row in rows), LEADING, vocabulary)


def _part(places: Tensor, values: Tensor, ids: Tensor, count: Tensor) -> Part:
    width = int(count.max())
    removed = torch.arange(width, device=values.device) >= count[:, None]
    return Part(places, values[:, :width].masked_fill(removed, -torch.inf), ids[:, :width])


class _Cuts:
    """The cutting parameters of r rows, as tensors [r]."""

    def __init__(self, min_p: Tensor, top_k: Tensor, top_p: Tensor) -> None:
        self.log_min_p, self.top_k, self.top_p = min_p.log(), top_k, top_p

    @classmethod
    def of(cls, rows: Sequence[SamplingRow], device: torch.device) -> _Cuts:
        sampling = [row.sampling for row in rows]
        return cls(
            torch.tensor([s.min_p for s in sampling], dtype=torch.float64, device=device),
            torch.tensor([s.top_k or torch.iinfo(torch.int64).max for s in sampling], device=device),
            torch.tensor([s.top_p for s in sampling], dtype=torch.float64, device=device),
        )

    def count(self, values: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """How many of the first K tokens in order, `values` [r, K] of `x` [r, V], are kept: int64 [r].

        Also bool [r]: whether these K tokens told (where not, count again over all of them).
        """
        width, vocabulary = values.shape[-1], x.shape[-1]
        peak = values[:, 0]
        distance = values.to(torch.float64) - peak.to(torch.float64)[:, None]
        likely = ((distance >= self.log_min_p[:, None]) & (values > -torch.inf)).sum(-1)
        count = torch.minimum(likely, self.top_k)
        # What min_p and top_k leave is among these K, or it is the whole vocabulary, whose mass can be had unranked.
        among = (likely < width) | (self.top_k <= width) | (width == vocabulary)
        everything = ~among & (self.top_k >= vocabulary) & (self.log_min_p == -torch.inf) & (self.top_p < 1.0)
        if bool((self.top_p < 1.0).any()):
            bits = mass.scale_bits(vocabulary)
            inside = torch.arange(width, device=x.device) < count[:, None]
            masses = mass.masses(values, peak, bits).masked_fill_(~inside, 0)
            total = masses.sum(-1)
            index = torch.nonzero(everything).flatten()
            if len(index):
                total[index] = mass.total(x[index], peak[index], bits)
            before = masses.cumsum(-1).sub_(masses).to(torch.float64)
            reached = before >= (total.to(torch.float64) * self.top_p)[:, None]
            nucleus = (inside & ~reached).sum(-1)
            count = torch.where(self.top_p < 1.0, nucleus, count)
        return count, among | everything
