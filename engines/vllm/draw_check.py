"""Does this vLLM draw what Tandem's logits processor wants? Checked once, at start.

At a temperature of 100 among a few permitted tokens it is the noise that decides, whatever the model: so the right
tokens are known beforehand. They come out only if mask, seed, positions and noise reach vLLM's sampler, and if the list
of output tokens that vLLM handed over grows as tokens are drawn.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from engines.errors import ModelError
from engines.sampling.distribution import Distribution, Part
from engines.sampling.draw import draw_top2
from engines.sampling.rows import SamplingRow
from engines.vllm.requests import Answer, Place, sampling_params
from protocol.messages import Sampling

logger = logging.getLogger(__name__)

_PROMPT = [0, 1]
_TOKENS = 4
_PERMITTED = 16
_TEMPERATURE = 100.0
# The runner-up's noise is as much less at each position, and `logit_bias` takes no more than the product of the two.
_LEAST_GAP = 1.0
_BIAS = _LEAST_GAP * _TEMPERATURE


class Asks(Protocol):
    """The part of VllmEngine that is used here."""

    async def ask(self, ids: list[int], params: object, salt: str | None = None) -> Answer: ...


async def check_draws(engine: Asks, vocabulary: int) -> None:
    """Raises ModelError if vLLM does not draw what our processor wants."""
    await _check_mask(engine, vocabulary)
    permitted = sorted({number * vocabulary // _PERMITTED for number in range(_PERMITTED)})
    for seed, expected in _certain_draws(permitted, vocabulary, number=2):
        allowed = _only(permitted, vocabulary)
        place = Place(_row(Sampling(temperature=_TEMPERATURE, seed=seed), len(_PROMPT)), allowed)
        answer = await engine.ask(_PROMPT, sampling_params(place, max_tokens=_TOKENS))
        for drawn, (token, wanted) in enumerate(zip(answer.token_ids, expected, strict=True)):
            if token == wanted:
                continue
            if not await _noise_decides(engine, [*_PROMPT, *expected[:drawn]], wanted, allowed):
                logger.warning("vLLM's draws could not be checked: this model's logits outweigh the noise")
                return
            raise ModelError(f"this vLLM drew {answer.token_ids} where Tandem's noise wants {expected} (seed {seed})")


async def _check_mask(engine: Asks, vocabulary: int) -> None:
    """Only one token is permitted, a different one each time: only the processor would make vLLM draw both."""
    for token_id in (vocabulary // 3, 2 * vocabulary // 3):
        place = Place(_row(Sampling(temperature=0.0, seed=0), len(_PROMPT)), _only([token_id], vocabulary))
        answer = await engine.ask(_PROMPT, sampling_params(place, max_tokens=2))
        if answer.token_ids != [token_id, token_id]:
            raise ModelError(f"this vLLM drew {answer.token_ids} where Tandem's logits processor wanted {token_id}")


async def _noise_decides(engine: Asks, ids: list[int], token_id: int, allowed: Tensor) -> bool:
    """Whether no other permitted token's logit is so much greater that it may win against the noise."""
    sampling = Sampling(temperature=0.0, logit_bias={str(token_id): _BIAS}, seed=0)
    answer = await engine.ask(ids, sampling_params(Place(_row(sampling, len(ids)), allowed)))
    return answer.token_ids == [token_id]


def _certain_draws(permitted: Sequence[int], vocabulary: int, number: int) -> list[tuple[int, list[int]]]:
    """The first seeds under which the noise decides clearly at all positions, and what is then drawn."""
    found: list[tuple[int, list[int]]] = []
    ids = torch.tensor(permitted).expand(_TOKENS, -1)
    even = Distribution(_TOKENS, vocabulary, (Part(torch.arange(_TOKENS), torch.zeros(_TOKENS, len(permitted)), ids),))
    seed = 0
    while len(found) < number:
        sampling = Sampling(temperature=_TEMPERATURE, seed=seed)
        two = draw_top2(even, [_row(sampling, len(_PROMPT) + drawn) for drawn in range(_TOKENS)])
        if bool((two.gap > _LEAST_GAP).all()):
            found.append((seed, two.first.tolist()))
        seed += 1
    return found


def _row(sampling: Sampling, position: int) -> SamplingRow:
    return SamplingRow(sampling, sampling.seed, position, [], position)


def _only(token_ids: Sequence[int], vocabulary: int) -> Tensor:
    """A bitmask that permits these tokens, int32 [1, ⌈V / 32⌉]."""
    words = [0] * ((vocabulary + 31) // 32)
    for token_id in token_ids:
        words[token_id // 32] |= 1 << (token_id % 32)
    return torch.tensor([[word - 2**32 if word >= 2**31 else word for word in words]], dtype=torch.int32)
