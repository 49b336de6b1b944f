"""The target's logits processor: a strategy's verdict on one place, inside vLLM."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from basics.names import Strategy
from engines.sampling.batch import Draws
from engines.sampling.rows import SamplingRow
from engines.vllm.processor import SamplingProcessor
from protocol.messages import TopK
from target_worker.strategies import STRATEGIES
from target_worker.strategies.drafts import Target, pad_drafts
from target_worker.strategies.probabilistic import pad_q

CLASS = f"{__name__}:VerdictProcessor"


def judging(strategy: Strategy, drafted: int | None, q: TopK | None) -> dict[str, Any]:
    """What goes along with a request for a place's token, for `strategy` to decide on. `drafted` None: no draft."""
    entries = {"token_ids": q.token_ids, "logprobs": q.logprobs} if q is not None else None
    return {"strategy": strategy, "drafted": drafted, "q": entries}


class VerdictProcessor(SamplingProcessor):
    """Emits at each place the drafted token if the strategy accepts it, else what the strategy emits instead.

    vLLM's raw_logprobs are taken before, so that a row of NaN shows as a log-probability of NaN.
    """

    @staticmethod
    def write(logits: Tensor, draws: Draws, asked: dict[str, Any], row: SamplingRow) -> None:
        token = draws.drawn.tokens[0]
        strategy = asked.get("strategy", "deterministic")
        if strategy != "deterministic":
            token = _emitted(STRATEGIES[strategy], draws, asked, row)
        _leave_only(logits, token)

    @staticmethod
    def write_failure(logits: Tensor) -> None:
        # Any token put here could be a valid one, and raw_logprobs cannot be changed: this request cannot fail alone.
        # Places at which a grammar permits nothing are refused earlier (engines/drawing.py), so this is a hardware
        # fault or a bug.
        if not bool(logits.log_softmax(-1).isnan().any()):
            raise RuntimeError("no token could be drawn from usable logits")
        _leave_only(logits, 0)


def _emitted(strategy: Any, draws: Draws, asked: dict[str, Any], row: SamplingRow) -> int:
    distribution = draws.distribution()
    drafted = asked["drafted"]
    chain = [] if drafted is None else [drafted]
    q = None
    if strategy.needs_q:
        q = pad_q([[TopK(**asked["q"])] if asked["q"] is not None and chain else []], distribution.device)
    drafts = pad_drafts([chain], [[0] * (len(chain) + 1)], distribution.device, q)
    own = torch.tensor(draws.drawn.tokens, device=distribution.device)
    outcome = strategy.verify(drafts, Target(distribution, [row], own))
    return drafted if int(outcome.num_accepted[0]) else int(outcome.next_token[0])


def _leave_only(logits: Tensor, token_id: int) -> None:
    logits.fill_(-math.inf)
    logits[token_id] = 0.0
