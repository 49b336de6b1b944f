"""Sampling rows and noise for tests."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from engines.sampling import noise
from engines.sampling.rows import SamplingRow
from protocol.messages import Sampling


def sampling_row(
    seed: int = 0,
    position: int = 3,
    history: tuple[int, ...] | None = None,
    num_prompt_tokens: int = 2,
    stop_token_ids: frozenset[int] = frozenset(),
    **sampling: Any,
) -> SamplingRow:
    """A row at `position`; without a history of its own it saw token 0 all along."""
    history = (0,) * position if history is None else history
    return SamplingRow(
        Sampling(seed=seed, **sampling),
        seed,
        len(history),
        history,
        min(num_prompt_tokens, len(history)),
        stop_token_ids,
    )


def gumbel(seeds: Tensor, stream: int, positions: Tensor, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise, float64 [R, K]; arguments as for noise.hash64."""
    return noise.gumbel_from_hash(noise.hash64(seeds, stream, positions, token_ids))
