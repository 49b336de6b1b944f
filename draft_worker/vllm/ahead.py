"""The next draft while the target verifies: one request of vLLM's for the likeliest outcome (docs/lookahead.md)."""

from __future__ import annotations

import time
from dataclasses import replace

from draft_worker.outcomes import BONUS, Ahead, Guess
from draft_worker.vllm.rows import read
from engines.drawing import RequestSampling
from engines.vllm.engine import VllmEngine
from engines.vllm.requests import Place, sampling_params
from protocol.messages import DraftRequest


async def look_ahead(
    engine: VllmEngine, request: DraftRequest, drawing: RequestSampling, q_top_k: int, ahead: Ahead
) -> None:
    """Fill in `ahead` with what would follow the whole draft, token by token; on the engine's loop.

    The draft's own next token is the guess of the target's. Other outcomes are left out: each would be a request more,
    in every step of vLLM's. Cancelling this aborts the request.
    """
    first = next((guess for guess in ahead.guesses if guess == Guess(BONUS, 0, guess.tokens, guess.in_turn)), None)
    drafted, room = ahead.drafted, drawing.room - len(ahead.drafted)
    if first is None or room < 2 or (drafted and drafted[-1] in drawing.stops):
        return
    truncate = q_top_k if request.want_q else None
    places = drawing.after([drafted])
    params = sampling_params(
        Place(places.rows[0], places.allowed, truncate=truncate),
        max_tokens=min(1 + first.tokens, room),
        stops=drawing.stops,
        logprobs=truncate or 0,
        stream=True,
    )
    began = time.perf_counter()
    async with engine.stream([*drawing.ids, *drafted], params, request.cache_salt) as answers:
        async for answer in answers:
            for token, entries in zip(answer.token_ids, answer.logprobs, strict=True):
                drawn = read(token, entries, truncate is not None)
                if not ahead.branches:  # the guess itself
                    ahead.guesses = [replace(first, in_turn=True)]
                    ahead.likely = [*([] for _ in drafted), [drawn.token]]
                    ahead.begin(drawing.room, drawing.stops)
                    if not ahead.branches:
                        return
                    continue
                (branch,) = ahead.branches
                if drawn.q is not None:
                    branch.q.append(drawn.q)
                branch.places.append(None)
                branch.add(drawn.token, drawing.stops)
                ahead.draws.append((len(branch.tokens), time.perf_counter() - began))
            if not ahead.time_to_draw(1):
                return
