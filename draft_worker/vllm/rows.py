"""How a row of processed logits encodes a draw: the way out of vLLM's process for what a draft needs to know.

vLLM hands the largest entries of a processed row back (`logprobs_mode="processed_logits"`). All are −inf but these:

- with `truncate` each token of q has its log-probability, the drawn one 1 / (1 − it), which lies in (0, 1];
- with `top2` the drawn token has 1, the runner-up minus its gap; otherwise the drawn token has 1;
- if nothing could be drawn, token 0 has 2.

So the drawn token is the one entry above 0, which is what vLLM's argmax takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engines.sampling.batch import Draws
from engines.sampling.rows import SamplingRow
from engines.vllm.requests import Logprobs
from protocol.errors import EngineFailure
from protocol.messages import TopK

_FAILED = 2.0
_CERTAIN = 1.0


def write(logits: Tensor, draws: Draws, asked: dict[str, Any], row: SamplingRow) -> None:
    """Fill one row, float32 [V]. `asked` names the form that is wanted (engines/vllm/requests.py)."""
    drawn = draws.drawn
    token = drawn.tokens[0]
    logits.fill_(-math.inf)
    logits[token] = _CERTAIN
    if asked["truncate"] is not None:
        ((ids, logprobs),) = draws.distribution().entries()
        logits[torch.tensor(ids, device=logits.device)] = torch.tensor(logprobs, device=logits.device).to(logits)
        logits[token] = 1.0 / (1.0 - logprobs[ids.index(token)])
    elif asked["top2"] and drawn.second[0] >= 0 and math.isfinite(drawn.gaps[0]):
        logits[drawn.second[0]] = -drawn.gaps[0]


def write_failure(logits: Tensor) -> None:
    logits.fill_(-math.inf)
    logits[0] = _FAILED


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """`second` is −1 and `gap` +inf if no runner-up was asked for, or there is none."""

    token: int
    second: int
    gap: float
    q: TopK | None


def read(token: int, entries: Logprobs, wants_q: bool) -> DrawnToken:
    """What the processor reported of a drawn token. Raises EngineFailure if it could not draw."""
    values = {token_id: entry.logprob for token_id, entry in entries.items() if entry.logprob > -math.inf}
    marked = values.pop(token, _FAILED)
    if not 0.0 < marked <= _CERTAIN:
        raise EngineFailure("the model gave no usable logits")
    if wants_q:
        ids, logprobs = [token, *values], [1.0 - 1.0 / marked, *values.values()]
        order = sorted(range(len(ids)), key=lambda place: (-logprobs[place], ids[place]))
        q = TopK(token_ids=[ids[place] for place in order], logprobs=[logprobs[place] for place in order])
        return DrawnToken(token, -1, math.inf, q)
    if values:
        ((second, gap),) = values.items()
        return DrawnToken(token, second, -gap, None)
    return DrawnToken(token, -1, math.inf, None)
