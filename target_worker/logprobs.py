"""What the API reports of a token's probability: from the model's own logits, before anything is done to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engines.sampling.draw import token_logprobs
from protocol.messages import TokenLogprob

LEAST_LOGPROB = -9999.0
"""Stands for −inf, which JSON cannot express (as in OpenAI's API)."""


def reported_logprobs(logits: Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprob]:
    """For one token a row of raw logits, float32 [n, V], what the API reports."""
    found = token_logprobs(logits, torch.tensor(token_ids, device=logits.device), top)
    return [
        TokenLogprob(
            logprob=max(logprob, LEAST_LOGPROB),
            rank=rank,
            top=[(token_id, max(value, LEAST_LOGPROB)) for token_id, value in zip(ids, values, strict=True)],
        )
        for logprob, rank, ids, values in zip(
            found.logprob.tolist(),
            found.rank.tolist(),
            found.top_ids.tolist(),
            found.top_logprobs.tolist(),
            strict=True,
        )
    ]
