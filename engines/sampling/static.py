"""Draws that never wait for the device: the same tokens as process() and draw(), with shapes that never change.

For chains of tokens that are drawn on the device without the host, as CUDA graphs. If a draw needs what only the host
can decide (a cut beyond the first RANKED tokens, unusable logits), its row is flagged, to be drawn again in the
ordinary way. Edits of logits (masks, bias, penalties) are not made here: see `edits.is_edited`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from basics.names import GREEDY_TEMPERATURE
from engines.sampling import noise
from engines.sampling.cuts import Cuts
from engines.sampling.draw import draw_logits
from engines.sampling.process import Way
from engines.sampling.ranking import leading
from engines.sampling.rows import SamplingRow

WAYS: tuple[Way, ...] = ("greedy", "whole", "cut")
"""What all rows of a batch can be drawn by: the later, the more it costs and the more it can do."""
RANKED = 1024
"""Tokens that are ranked for a cut."""


def describe(row: SamplingRow) -> tuple[list[int], list[float]]:
    """A row's columns: seed and top_k, which are whole numbers, and temperature, top_p and min_p."""
    s = row.sampling
    return [row.seed, s.top_k or torch.iinfo(torch.int64).max], [s.temperature, s.top_p, s.min_p]


@dataclass(frozen=True, slots=True)
class StaticRows:
    """r rows' parameters on the device: `whole` int64 [2, r] and `real` float64 [3, r], as `describe` orders them."""

    whole: Tensor
    real: Tensor

    def draw(self, logits: Tensor, positions: Tensor, way: Way) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens for absolute positions int64 [r] from raw logits float [r, V] → int64 [r], and bool [r]: sure; and
        the runners-up int64 [r]: what would be drawn without these tokens (by the logits alone where rows are cut)."""
        raw = logits.float()
        greedy = raw.argmax(-1)
        peak = raw.gather(-1, greedy[:, None])[:, 0]
        sure = (peak < torch.inf) & (peak > -torch.inf)  # a NaN counts as the largest
        if way == "greedy":
            return greedy, sure, _without(raw, greedy).argmax(-1)
        keys = noise.row_keys(self.whole[0], noise.DRAW, positions)
        is_greedy = self.real[0] < GREEDY_TEMPERATURE
        tempered = raw / self.real[0].masked_fill(is_greedy, 1.0).to(torch.float32)[:, None]
        tokens = draw_logits(tempered, None, keys)
        if way == "cut":
            cut, is_sure, is_cut_row = self._cut(tempered, keys)
            tokens = torch.where(is_cut_row, cut, tokens)
            sure &= is_sure | ~is_cut_row | is_greedy
        tokens = torch.where(is_greedy, greedy, tokens)
        rest = _without(raw, tokens)
        likeliest = rest.argmax(-1)
        if way == "cut":
            return tokens, sure, likeliest
        second = draw_logits(_without(tempered, tokens), None, keys)
        return tokens, sure, torch.where(is_greedy, likeliest, second)

    def _cut(self, x: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        vocabulary = x.shape[-1]
        top_k, top_p, min_p = self.whole[1], self.real[1], self.real[2]
        values, ids, certain = leading(x, min(RANKED, vocabulary))
        count, known = Cuts(min_p, top_k, top_p).count_static(values, x)
        removed = torch.arange(values.shape[-1], device=x.device) >= count[:, None]
        tokens = draw_logits(values.masked_fill(removed, -torch.inf), ids, keys)
        return tokens, known & (count <= certain), (min_p > 0.0) | (top_p < 1.0) | (top_k < vocabulary)


def _without(logits: Tensor, tokens: Tensor) -> Tensor:
    """Float [r, V] with the tokens int64 [r] left out."""
    return logits.scatter(-1, tokens[:, None], -torch.inf)
