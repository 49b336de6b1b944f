"""Targets of a few logits, and chains of drafts over them."""

from __future__ import annotations

from typing import Any

import torch

from engines.sampling.distribution import Distribution
from engines.sampling.draw import draw
from engines.sampling.process import process
from protocol.messages import TopK
from target_worker.strategies import probabilistic
from target_worker.strategies.drafts import Drafts, Target, pad_drafts
from tests.engines.sampling.helpers import sampling_row


def target_of(logits: list[list[float]], seed: int = 0, **parameters: Any) -> Target:
    rows = [sampling_row(seed=seed, position=2 + i, **parameters) for i in range(len(logits))]
    distribution = process(torch.tensor(logits), rows)
    return Target(distribution, rows, draw(distribution, rows))


def top(distribution: Distribution, row: int) -> TopK:
    ids, logprobs = distribution.truncate(4).rows(torch.tensor([row])).entries()[0]
    return TopK(token_ids=ids, logprobs=logprobs)


def chain_of(tokens: list[list[int]], q: list[list[TopK]] | None = None, threshold: float = 0.1) -> Drafts:
    """Chains over the same rows: place i of each comes from target row i."""
    return pad_drafts(
        tokens,
        [list(range(len(ids) + 1)) for ids in tokens],
        q=None if q is None else probabilistic.pad_q(q),
        threshold=[threshold] * len(tokens),
    )
