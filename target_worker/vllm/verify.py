"""A verification on vLLM: the target's token after the context and after every drafted token.

Each is a request of one token; what they share is in vLLM's prefix cache. At temperature 0 with nothing that changes
logits, one request over context and draft is enough: vLLM reports the likeliest tokens at each place of a prompt.
"""

from __future__ import annotations

import math
import time

from engines.drawing import Places, RequestSampling
from engines.vllm.engine import VllmEngine, all_of
from engines.vllm.requests import Answer, Place, sampling_params
from protocol.messages import VerifyRequest, VerifyResponse
from protocol.target_rounds import edits_logits, is_greedy
from target_worker.verification import Verification
from target_worker.vllm.answers import check_drawn, timings_of, token_logprob
from target_worker.vllm.processor import judging


class VllmVerification:
    """One checked `/v1/verify`. `response` runs on the engine's loop."""

    def __init__(self, engine: VllmEngine, request: VerifyRequest, drawing: RequestSampling, log_all: bool) -> None:
        self._engine = engine
        self._request = request
        self._drawing = drawing
        self._verification = Verification(request, drawing, log_all)
        self._tails: list[list[int]] = [[]]
        tree = self._verification.tree
        for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
            self._tails.append([*self._tails[parent + 1], token_id])
        self._answers: dict[int, Answer] = {}

    async def response(self) -> VerifyResponse:
        began = time.perf_counter()
        verification, drawing, request = self._verification, self._drawing, self._request
        places = verification.places()
        # A place where no token may be emitted any more needs no answer, and vLLM would have no room for one.
        wanted = [place for place, tail in enumerate(self._tails) if len(tail) < drawing.room]
        emitted = await self._by_prompt(places) if self._one_request_tells() else {}
        missing = [place for place in wanted if place not in emitted]
        answers = await all_of([self._ask(places, place) for place in missing])
        for place, answer in zip(missing, answers, strict=True):
            self._answers[place] = answer
            emitted[place] = answer.token_ids[0]
        verdict = verification.judge_emitted(emitted)
        cut = verification.cut(verdict)
        logprobs = None
        if request.logprobs is not None:
            logprobs = [
                token_logprob(token, self._answers[place].logprobs[0], request.logprobs)
                for place, token in zip(verification.paths[verdict.candidate], cut.token_ids, strict=False)
            ]
        total = time.perf_counter() - began
        queued = min(total, max(answer.queue_seconds for answer in self._answers.values()))
        cached = min(len(drawing.ids), min(answer.cached_tokens for answer in self._answers.values()))
        took = timings_of(total, queued, max(len(wanted), self._engine.rows))
        return verification.response(verdict, cut, logprobs, cached, took)

    async def _ask(self, places: Places, place: int) -> Answer:
        """The token at one place."""
        row, allowed, tail = places.rows[place], places.allowed, self._tails[place]
        drafted = q = None
        if self._verification.strategy.needs_q and len(tail) < len(self._verification.chains[0]):
            drafted = self._verification.chains[0][len(tail)]
            sent = self._request.candidates[0].q
            q = sent[len(tail)] if sent is not None else None
        asked = Place(
            row,
            allowed[place, None] if allowed is not None else None,
            more=judging(self._request.strategy, drafted, q),
        )
        params = sampling_params(asked, logprobs=self._request.logprobs or 0)
        answer = await self._engine.ask([*self._drawing.ids, *tail], params, self._request.cache_salt)
        check_drawn(answer.token_ids[0], answer.logprobs[0])
        return answer

    def _one_request_tells(self) -> bool:
        """Whether nothing but the raw logits' order decides, at places of one chain."""
        return (
            is_greedy(self._request.sampling)
            and not edits_logits(self._request.sampling)
            and self._request.grammar is None
            and self._request.logprobs is None
            and len(self._verification.chains) == 1
            and len(self._verification.chains[0]) > 0
        )

    async def _by_prompt(self, places: Places) -> dict[int, int]:
        """The likeliest token by place, from one request; places that it does not cover are left out.

        For cached tokens vLLM computed no logits: their entries are uninitialised memory (Answer.computed_after).
        The last place's token was always drawn. Two tokens of one log-probability may have had different logits,
        or be reported in any order.
        """
        ids, chain = self._drawing.ids, self._verification.chains[0][: self._drawing.room - 1]
        last = Place(places.rows[len(chain)], more=judging("deterministic", None, None))
        params = sampling_params(last, prompt_logprobs=2)
        answer = await self._engine.ask([*ids, *chain], params, self._request.cache_salt)
        check_drawn(answer.token_ids[0], answer.logprobs[0])
        self._answers[len(chain)] = answer
        found = {len(chain): answer.token_ids[0]}
        for place in range(len(chain)):
            index = len(ids) + place
            computed = answer.computed_after is not None and index > answer.computed_after
            entries = answer.prompt_logprobs[index] if computed else None
            if not entries:
                continue
            best = sorted(((entry.logprob, token_id) for token_id, entry in entries.items()), reverse=True)
            if math.isfinite(best[0][0]) and (len(best) == 1 or best[0][0] > best[1][0]):
                found[place] = best[0][1]
        return found
