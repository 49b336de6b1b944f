"""From vLLM's report on a token to the wire's."""

from __future__ import annotations

import math

from engines.vllm.requests import Logprobs
from protocol.errors import EngineFailure
from protocol.messages import TokenLogprob, VerifyTimings
from target_worker.logprobs import LEAST_LOGPROB


def check_drawn(token: int, logprobs: Logprobs) -> None:
    """Raises EngineFailure if the model's logits were NaN: the token then means nothing."""
    if math.isnan(logprobs[token].logprob):
        raise EngineFailure("the model gave no usable logits: NaN or infinite logits")


def token_logprob(token: int, logprobs: Logprobs, top: int) -> TokenLogprob:
    """From vLLM's entries for one position, the drawn token's and the `top` likeliest, all of the raw logits."""
    likeliest = sorted((entry.rank, token_id, entry.logprob) for token_id, entry in logprobs.items())
    return TokenLogprob(
        logprob=max(logprobs[token].logprob, LEAST_LOGPROB),
        rank=logprobs[token].rank,
        top=[(token_id, max(logprob, LEAST_LOGPROB)) for _, token_id, logprob in likeliest[:top]],
    )


def timings_of(total_seconds: float, queue_seconds: float, rows: int) -> VerifyTimings:
    """vLLM does not separate the draw's time from the model's: it counts as forward."""
    return VerifyTimings(
        queue_ms=queue_seconds * 1e3,
        forward_ms=(total_seconds - queue_seconds) * 1e3,
        sample_ms=0.0,
        total_ms=total_seconds * 1e3,
        rows=rows,
        sessions=1,
    )
