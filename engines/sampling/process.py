"""From logits to the distribution that a token is drawn from, each row with its own parameters and history.

The order is vLLM's: grammar mask, stop tokens, bias, penalties (edits.py), temperature, min_p, top_k, top_p (cuts.py).
What is not active costs nothing. A result is a function of its row alone, bit for bit, and does not depend on the path
that computed it: the cuts are made in one defined order of tokens (ranking.py) by exact integer masses (mass.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Literal

import torch
from torch import Tensor

from basics.names import GREEDY_TEMPERATURE
from engines.sampling.cuts import cut, is_cut
from engines.sampling.distribution import Distribution, Part
from engines.sampling.edits import edit_logits, is_edited
from engines.sampling.ranking import lowest_best
from engines.sampling.rows import SamplingRow

Way = Literal["greedy", "whole", "cut"]
"""How a row is drawn: its likeliest token; from all tokens; from those that cuts leave."""


class UnusableLogits(ValueError):
    """`rows`: indices of the rows at fault. Their requests fail; the others can be processed without them."""

    reason = "unusable logits"

    def __init__(self, rows: Sequence[int]) -> None:
        super().__init__(f"{self.reason} in rows {list(rows)}")
        self.rows = tuple(rows)


class NanLogits(UnusableLogits):
    """The model computed NaN or +inf."""

    reason = "NaN or infinite logits"


class NoTokenLeft(UnusableLogits):
    """Every token of the row is masked out or −inf."""

    reason = "no token left"


def process(logits: Tensor, rows: Sequence[SamplingRow], allowed: Tensor | None = None) -> Distribution:
    """Float [R, V] and R rows → R distributions; `logits` is left as it is.

    `allowed`: what a grammar permits, bool [R, V] or a packed int32 bitmask (edits.edit_logits).
    Raises NanLogits (NaN or +inf among a row's logits) and NoTokenLeft (all −inf, or all masked).
    """
    if logits.ndim != 2 or logits.shape[0] != len(rows):
        raise ValueError(f"logits {tuple(logits.shape)} do not have one row for each of {len(rows)} sampling rows")
    vocabulary = logits.shape[1]
    if not rows:
        return Distribution(0, vocabulary, ())
    raw = logits.float()
    ways = [way_of(row, vocabulary) for row in rows]
    if allowed is None and all(way == "greedy" and not is_edited(row) for way, row in zip(ways, rows, strict=True)):
        return _greedy(raw)
    peaks: list[float] = raw.amax(dim=-1).tolist()
    if wrong := [i for i, peak in enumerate(peaks) if not peak < inf]:
        raise NanLogits(wrong)
    x = edit_logits(raw, rows, allowed)
    if x is not raw:
        peaks = x.amax(dim=-1).tolist()
    if wrong := [i for i, peak in enumerate(peaks) if peak == -inf]:
        raise NoTokenLeft(wrong)

    parts: list[Part] = []
    for way in sorted(set(ways)):
        index = [i for i, w in enumerate(ways) if w == way]
        places = torch.tensor(index, dtype=torch.int64, device=x.device)
        chosen, chosen_rows = (x, rows) if len(index) == len(rows) else (x[places], [rows[i] for i in index])
        if way == "greedy":
            parts.append(Part(places, chosen.new_zeros(len(index), 1), lowest_best(chosen, None)[:, None]))
        elif way == "cut":
            parts.extend(cut(_tempered(chosen, chosen_rows), chosen_rows, places))
        else:
            parts.append(Part(places, _tempered(chosen, chosen_rows), None))
    return Distribution(len(rows), vocabulary, tuple(parts))


def _greedy(logits: Tensor) -> Distribution:
    """Of rows that are drawn greedily, with nothing edited: looked through once, for a NaN counts as the largest."""
    best = lowest_best(logits, None)[:, None]
    peaks: list[float] = logits.gather(-1, best)[:, 0].tolist()
    if wrong := [i for i, peak in enumerate(peaks) if not peak < inf]:
        raise NanLogits(wrong)
    if wrong := [i for i, peak in enumerate(peaks) if peak == -inf]:
        raise NoTokenLeft(wrong)
    places = torch.arange(len(peaks), device=logits.device)
    return Distribution(len(peaks), logits.shape[1], (Part(places, logits.new_zeros(len(peaks), 1), best),))


def way_of(row: SamplingRow, vocabulary: int) -> Way:
    """How this row is drawn, temperature and cuts considered, from a vocabulary of this size."""
    if row.sampling.temperature < GREEDY_TEMPERATURE:
        return "greedy"
    return "cut" if is_cut(row, vocabulary) else "whole"


def _tempered(x: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    temperatures = [row.sampling.temperature for row in rows]
    if all(t == 1.0 for t in temperatures):
        return x
    # A tensor, not a number: torch divides by a Python number on CUDA as a multiplication by its reciprocal.
    return x / torch.tensor(temperatures, dtype=torch.float32, device=x.device)[:, None]
