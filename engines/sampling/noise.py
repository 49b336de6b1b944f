"""The shared noise: a counter-based 64-bit hash of (seed, stream, position, token id), uniforms and Gumbels from it.

The hash is splitmix64's finaliser (Steele, Lea and Flood: *Fast splittable pseudorandom number generators*, 2014; its
mixing constants are Stafford's variant 13) over a chain: seed, stream and position make one key a row, and
each token id is one step of a splitmix64 generator that starts at that key. Only integer operations modulo 2^64 are
used, so it is equal bit for bit in every process and on every device. torch has no unsigned 64-bit arithmetic: int64
wraps around the same way, and a logical right shift is an arithmetic one with the sign's copies masked away.
"""

from __future__ import annotations

import torch
from torch import Tensor

DRAW = 0
"""Draws of draft and target."""
ACCEPT = 1
"""Acceptance uniforms of the `probabilistic` strategy."""
RESIDUAL = 2
"""Its draws from the residual distribution: reusing DRAW there was measured to bias the result."""

_MASK64 = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_SHIFTS_AND_FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
_LARGEST_UNIFORM = 1.0 - 2.0**-53


def _signed(value: int) -> int:
    """`value` modulo 2^64, as the int64 of the same bits."""
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value


def _mix_int(value: int) -> int:
    for shift, factor in _SHIFTS_AND_FACTORS:
        value &= _MASK64
        value = (value ^ (value >> shift)) * factor
    return value & _MASK64


def _mix_(z: Tensor) -> Tensor:
    """splitmix64's finaliser, in place on an int64 tensor."""
    for shift, factor in _SHIFTS_AND_FACTORS:
        z ^= (z >> shift).bitwise_and_((1 << (64 - shift)) - 1)
        if factor != 1:
            z *= _signed(factor)
    return z


def mix_choice(seed: int, choice_index: int) -> int:
    """The seed of one of several choices: index 0 leaves it as it is, every other one gives an unrelated int64."""
    if choice_index == 0:
        return seed
    return _signed(_mix_int(_mix_int(seed + _GAMMA) + choice_index * _GAMMA))


def row_keys(seeds: Tensor, stream: int, positions: Tensor) -> Tensor:
    """One int64 key for each (seed, stream, position): [R] and [R] → [R]."""
    key = _mix_(seeds + _signed(_GAMMA))
    key = _mix_(key.add_(_signed((stream + 1) * _GAMMA)))
    return _mix_(key.add_((positions + 1) * _signed(_GAMMA)))


def row_key(seed: int, stream: int, position: int) -> int:
    """`row_keys` of one row, as an int64: on a CPU the tensors' many small calls take ten times as long."""
    key = _mix_int(seed + _GAMMA)
    key = _mix_int(key + (stream + 1) * _GAMMA)
    return _signed(_mix_int(key + (position + 1) * _GAMMA))


def hash_ids(keys: Tensor, token_ids: Tensor) -> Tensor:
    """The hash of each token id under each row's key: int64 [R] and [K] or [R, K] → int64 [R, K]."""
    return _mix_((token_ids + 1) * _signed(_GAMMA) + keys[:, None])


def hash64(seeds: Tensor, stream: int, positions: Tensor, token_ids: Tensor) -> Tensor:
    """The 64-bit hash, as int64 [R, K], of int64 seeds [R], positions [R] and token ids [K] or [R, K]."""
    return hash_ids(row_keys(seeds, stream, positions), token_ids)


def uniform_from_hash(h: Tensor) -> Tensor:
    """((h >>> 11) + 0.5) · 2^-53 in float64, strictly inside (0, 1).

    The sum rounds to even from 2^52 on, which would make the largest hash exactly 1 and its Gumbel infinite: that one
    value is taken down to the float64 below 1.
    """
    mantissa = (h >> 11).bitwise_and_((1 << 53) - 1)
    return mantissa.to(torch.float64).add_(0.5).mul_(2.0**-53).clamp_(max=_LARGEST_UNIFORM)


def gumbel_from_hash(h: Tensor) -> Tensor:
    """Standard Gumbel noise −log(−log u), float64, finite: between −3.7 and 36.8."""
    return uniform_from_hash(h).log_().neg_().log_().neg_()


def uniform(seeds: Tensor, stream: int, positions: Tensor, token_ids: Tensor) -> Tensor:
    """Uniforms in (0, 1), float64 [R, K]; arguments as for `hash64`."""
    return uniform_from_hash(hash64(seeds, stream, positions, token_ids))
