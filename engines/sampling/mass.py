"""Sums of probabilities that do not depend on the order of summation.

A floating-point sum over a row changes in its last bits with the row's padding, the number of rows beside it, the
number of threads and the device. Here exp(x − peak) becomes a 64-bit fixed-point integer first: integers add up to the
same total in any order, so a top-p cut and a normaliser are the same whichever way they were computed. The scale leaves
room for a whole vocabulary of the largest mass; with 152k tokens what is lost is under 2^-43 of the top token's mass
for each token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engines.sampling.tiles import tiles


def scale_bits(vocabulary: int) -> int:
    """Fractional bits of a mass: as many as keep the sum over `vocabulary` tokens below 2^63."""
    return 62 - max(vocabulary, 1).bit_length()


def masses(x: Tensor, peak: Tensor, bits: int) -> Tensor:
    """exp(x − peak) in fixed point: float [R, K] and float [R] → int64 [R, K]; −inf has no mass."""
    return x.to(torch.float64).sub_(peak.to(torch.float64)[:, None]).exp_().mul_(2.0**bits).to(torch.int64)


def total(x: Tensor, peak: Tensor, bits: int) -> Tensor:
    """The mass of whole rows: float [R, V] and float [R] → int64 [R]."""
    found = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
    for columns in tiles(x):
        found += masses(x[:, columns], peak, bits).sum(-1)
    return found


def log_total(total: Tensor, peak: Tensor, bits: int) -> Tensor:
    """log Σ exp(x) in float64 [R], from the int64 sum [R] of its masses."""
    # Scaled back first, which is exact, so that a lone token has log-probability 0 and not nearly 0.
    return total.to(torch.float64).mul_(2.0**-bits).log_().add_(peak.to(torch.float64))
