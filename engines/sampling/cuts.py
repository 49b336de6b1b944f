"""min_p, top_k and top_p: how many of a row's tokens, in their order, are left."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engines.sampling import mass
from engines.sampling.distribution import Part
from engines.sampling.ranking import leading
from engines.sampling.rows import SamplingRow

LEADING = (256, 4096)
"""How many tokens are ranked at first, and for rows whose cut lies beyond these; after that all of them are."""


def is_cut(row: SamplingRow, vocabulary: int) -> bool:
    """Whether min_p, top_k or top_p can remove a token of this row, of a vocabulary of this size."""
    s = row.sampling
    return s.min_p > 0.0 or s.top_p < 1.0 or 0 < s.top_k < vocabulary


def cut(x: Tensor, rows: Sequence[SamplingRow], places: Tensor) -> list[Part]:
    """Tempered float32 [r, V] and the rows it belongs to, at `places` [r] of the distribution, → sparse parts.

    min_p keeps p ≥ min_p · max p; top_k the first k in order; top_p the shortest beginning of the order whose mass
    reaches top_p of the mass that min_p and top_k left.
    """
    vocabulary = x.shape[-1]
    parts: list[Part] = []
    for width in [*_widths(rows, vocabulary), vocabulary]:
        values, ids, certain = leading(x, width)
        count, known = Cuts.of(rows, x.device).count(values, x)
        done = known & (count <= certain)
        if bool(done.all()):
            return [*parts, _part(places, values, ids, count)]
        found, rest = torch.nonzero(done).flatten(), torch.nonzero(~done).flatten()
        if len(found):
            parts.append(_part(places[found], values[found], ids[found], count[found]))
        x, places, rows = x[rest], places[rest], [rows[i] for i in rest.tolist()]
    raise AssertionError("ranking the whole vocabulary decides every cut")


def _widths(rows: Sequence[SamplingRow], vocabulary: int) -> list[int]:
    """How many tokens to rank at first; for top_k alone one more than the largest k, to detect ties."""
    largest = max(row.sampling.top_k or vocabulary for row in rows) + 1
    return [largest] if largest <= LEADING[0] else [width for width in LEADING if width < vocabulary]


def _part(places: Tensor, values: Tensor, ids: Tensor, count: Tensor) -> Part:
    width = int(count.max())
    removed = torch.arange(width, device=values.device) >= count[:, None]
    return Part(places, values[:, :width].masked_fill(removed, -torch.inf), ids[:, :width])


class Cuts:
    """The cutting parameters of r rows, as tensors [r]."""

    def __init__(self, min_p: Tensor, top_k: Tensor, top_p: Tensor) -> None:
        self.log_min_p, self.top_k, self.top_p = min_p.log(), top_k, top_p

    @classmethod
    def of(cls, rows: Sequence[SamplingRow], device: torch.device) -> Cuts:
        sampling = [row.sampling for row in rows]
        return cls(
            torch.tensor([s.min_p for s in sampling], dtype=torch.float64, device=device),
            torch.tensor([s.top_k or torch.iinfo(torch.int64).max for s in sampling], device=device),
            torch.tensor([s.top_p for s in sampling], dtype=torch.float64, device=device),
        )

    def count(self, values: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """How many of the first K tokens in order, `values` [r, K] of `x` [r, V], are kept: int64 [r].

        Also bool [r]: whether these K tokens were enough (if not, count again over all tokens).
        """
        among, everything, count = self._without_top_p(values, x)
        if bool((self.top_p < 1.0).any()):
            bits = mass.scale_bits(x.shape[-1])
            masses, total = _masses(values, count, bits)
            index = torch.nonzero(everything).flatten()
            if len(index):
                total[index] = mass.total(x[index], values[index, 0], bits)
            count = self._nucleus(masses, total, count)
        return count, among | everything

    def count_static(self, values: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """`count` without waiting for the device: it sums over every row's whole vocabulary, needed or not."""
        among, everything, count = self._without_top_p(values, x)
        bits = mass.scale_bits(x.shape[-1])
        masses, total = _masses(values, count, bits)
        total = torch.where(everything, mass.total(x, values[:, 0], bits), total)
        return self._nucleus(masses, total, count), among | everything

    def _without_top_p(self, values: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which rows have what min_p and top_k leave among `values`, which have all of `x` left, and how many are."""
        width, vocabulary = values.shape[-1], x.shape[-1]
        distance = values.to(torch.float64) - values[:, :1].to(torch.float64)
        likely = ((distance >= self.log_min_p[:, None]) & (values > -torch.inf)).sum(-1)
        # What min_p and top_k leave is among these, or it is the whole vocabulary, whose mass can be had unranked.
        among = (likely < width) | (self.top_k <= width) | (width == vocabulary)
        everything = ~among & (self.top_k >= vocabulary) & (self.log_min_p == -torch.inf) & (self.top_p < 1.0)
        return among, everything, torch.minimum(likely, self.top_k)

    def _nucleus(self, masses: Tensor, total: Tensor, count: Tensor) -> Tensor:
        before = masses.cumsum(-1).sub_(masses).to(torch.float64)
        reached = before >= (total.to(torch.float64) * self.top_p)[:, None]
        inside = torch.arange(masses.shape[-1], device=masses.device) < count[:, None]
        return torch.where(self.top_p < 1.0, (inside & ~reached).sum(-1), count)


def _masses(values: Tensor, count: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The masses int64 [r, K] of the first `count` of each row's `values`, 0 behind them, and their sums."""
    inside = torch.arange(values.shape[-1], device=values.device) < count[:, None]
    masses = mass.masses(values, values[:, 0], bits).masked_fill_(~inside, 0)
    return masses, masses.sum(-1)
