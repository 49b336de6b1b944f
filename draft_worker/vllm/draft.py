"""Drafts from a model on vLLM, drawn with the target's own noise; candidates as in draft_worker/runtime/draft.py."""

from __future__ import annotations

import math
import time

from draft_worker.engine import Drafted
from draft_worker.vllm.rows import DrawnToken, read
from engines.drawing import RequestSampling
from engines.vllm.engine import VllmEngine, all_of
from engines.vllm.requests import Answer, Place, sampling_params
from protocol.messages import Candidate, DraftRequest, DraftTimings, Sampling


class VllmDraft:
    """One checked `/v1/draft`. `draft` runs on the engine's loop."""

    def __init__(self, engine: VllmEngine, request: DraftRequest, drawing: RequestSampling, q_top_k: int) -> None:
        self._engine = engine
        self._request = request
        self._drawing = drawing
        self._depth = request.draft_tokens
        self._truncate = q_top_k if request.want_q else None
        self._top2 = request.num_candidates > 1
        self._first: Answer | None = None
        self._queued = 0.0
        changes = {"temperature": request.candidate_temperature, "top_p": request.candidate_top_p}
        given = {name: value for name, value in changes.items() if value is not None}
        self._branch_sampling = request.sampling.model_copy(update=given) if given else None

    async def draft(self) -> Drafted:
        began = time.perf_counter()
        candidates: list[Candidate] = []
        if self._depth == 0:
            # It only reads the context, and a token is the least that vLLM can be asked for.
            await self._ask([], 1, None)
        else:
            chain = await self._grow([], self._depth, None)
            tokens = [drawn.token for drawn in chain]
            q = [drawn.q for drawn in chain if drawn.q is not None]
            logprobs = None
            if q:
                logprobs = [top.logprobs[top.token_ids.index(token)] for top, token in zip(q, tokens, strict=True)]
            candidates = [Candidate(token_ids=tokens, logprobs=logprobs, q=q or None)]
            candidates += await all_of([self._branch(tokens[:at], chain[at].second) for at in self._leaves(chain)])
        total = time.perf_counter() - began
        queued = min(total, self._queued)
        timings = DraftTimings(
            queue_ms=queued * 1e3, forward_ms=(total - queued) * 1e3, sample_ms=0.0, total_ms=total * 1e3
        )
        cached = self._first.cached_tokens if self._first is not None else 0
        return Drafted(candidates, min(cached, self._drawing.length), timings)

    def _leaves(self, chain: list[DrawnToken]) -> list[int]:
        """Where the other candidates leave the chain, the least certain place first."""
        places = [place for place, drawn in enumerate(chain) if drawn.gap < math.inf]
        places.sort(key=lambda place: chain[place].gap)
        return places[: self._request.num_candidates - 1]

    async def _branch(self, shared: list[int], second: int) -> Candidate:
        tokens = [*shared, second]
        if second not in self._drawing.stops:
            grown = await self._grow(tokens, self._depth - len(tokens), self._branch_sampling)
            tokens += [drawn.token for drawn in grown]
        return Candidate(token_ids=tokens)

    async def _grow(self, tail: list[int], count: int, sampling: Sampling | None) -> list[DrawnToken]:
        """`count` tokens after the context and `tail`, fewer if one of them is a stop token."""
        if self._request.grammar is None:
            return await self._ask(tail, count, sampling) if count else []
        found: list[DrawnToken] = []
        while len(found) < count and not (found and found[-1].token in self._drawing.stops):
            found += await self._ask([*tail, *(drawn.token for drawn in found)], 1, sampling)
        return found

    async def _ask(self, tail: list[int], count: int, sampling: Sampling | None) -> list[DrawnToken]:
        """`count` tokens from one request: what a grammar permits holds for the first of them alone."""
        places = self._drawing.after([tail], sampling)
        place = Place(places.rows[0], places.allowed, self._top2, self._truncate)
        logprobs = self._truncate or (2 if self._top2 else 0)
        params = sampling_params(place, max_tokens=count, stops=self._drawing.stops, logprobs=logprobs)
        answer = await self._engine.ask([*self._drawing.ids, *tail], params, self._request.cache_salt)
        self._first = self._first or answer
        self._queued = max(self._queued, answer.queue_seconds)
        wants_q = self._truncate is not None
        return [read(token, entries, wants_q) for token, entries in zip(answer.token_ids, answer.logprobs, strict=True)]
