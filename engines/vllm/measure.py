"""What is timed once vLLM has started."""

from __future__ import annotations

import time
from statistics import median

from engines.sampling.rows import SamplingRow
from engines.vllm.engine import VllmEngine, all_of
from engines.vllm.requests import Place, sampling_params
from protocol.messages import Sampling

_MEASURED_ROWS = (2, 4, 8, 16)
_PROMPT_TOKENS = 48
_DECODED = 5
_REPEATS = 2


async def measure_step_seconds(
    engine: VllmEngine, vocabulary: int, context_length: int, verifies: bool
) -> dict[int, float]:
    """Median seconds by rows. 1: a token of a decoding run; n, if the engine verifies: n requests of one token,
    each a token longer than the one before, over a context that is held."""
    length = max(1, min(_PROMPT_TOKENS, context_length - max(_MEASURED_ROWS) - _DECODED))
    prompt = [place % vocabulary for place in range(length)]
    place = _place(length) if verifies else None
    await engine.ask(prompt, sampling_params(place))
    seconds = {1: await _median(engine, [prompt], _DECODED)}
    if verifies:
        for rows in _MEASURED_ROWS:
            prompts = [[*prompt, *([1 % vocabulary] * row)] for row in range(rows)]
            seconds[rows] = await _median(engine, prompts, 1)
    return seconds


async def _median(engine: VllmEngine, prompts: list[list[int]], tokens: int) -> float:
    times = []
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        works = [
            engine.ask(prompt, sampling_params(_place(len(prompt)) if tokens == 1 else None, max_tokens=tokens))
            for prompt in prompts
        ]
        await all_of(works)
        times.append((time.perf_counter() - began) / tokens)
    return median(times[1:])


def _place(position: int) -> Place:
    return Place(SamplingRow(Sampling(temperature=0.0, seed=0), 0, position, [], position))
