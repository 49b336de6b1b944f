"""A verification on vLLM: the target's token after the context and after every drafted token, then the verdict.

Each is a request of one token; what they share is in vLLM's prefix cache. At temperature 0 with nothing that changes
logits, one request over context and draft tells all: vLLM reports the likeliest tokens at each place of a prompt.
"""

from __future__ import annotations

import logging
import math
import time

from engines.drawing import Drawing, Places
from engines.vllm.engine import VllmEngine, all_of
from engines.vllm.requests import Answer, Place, sampling_params
from protocol.messages import VerifyRequest, VerifyResponse
from protocol.target_rounds import edits_logits, is_greedy
from target_worker.strategies import STRATEGIES
from target_worker.strategies.verdicts import cut_after_stop
from target_worker.tree import merge
from target_worker.vllm.answers import check_drawn, timings_of, token_logprob
from target_worker.vllm.processor import judging

logger = logging.getLogger(__name__)


class Verification:
    """One checked `/v1/verify`. `response` runs on the engine's loop."""

    def __init__(self, engine: VllmEngine, request: VerifyRequest, drawing: Drawing, log_all: bool) -> None:
        self._engine = engine
        self._request = request
        self._drawing = drawing
        self._strategy = STRATEGIES[request.strategy]
        self._log = log_all or request.log_decisions
        # No more is drafted than may be emitted.
        self._chains = [candidate.token_ids[: drawing.room] for candidate in request.candidates] or [[]]
        self._tree = merge(self._chains)
        self._tails: list[list[int]] = [[]]
        for token_id, parent in zip(self._tree.token_ids, self._tree.parents, strict=True):
            self._tails.append([*self._tails[parent + 1], token_id])
        self._answers: dict[int, Answer] = {}

    async def response(self) -> VerifyResponse:
        began = time.perf_counter()
        drawing, request = self._drawing, self._request
        places = drawing.along(self._tree.token_ids, self._tree.parents)
        # A place where no token may be emitted any more needs no answer, and vLLM would have no room for one.
        wanted = [place for place, tail in enumerate(self._tails) if len(tail) < drawing.room]
        emitted = await self._by_prompt(places) if self._one_request_tells() else {}
        missing = [place for place in wanted if place not in emitted]
        answers = await all_of([self._ask(places, place) for place in missing])
        for place, answer in zip(missing, answers, strict=True):
            self._answers[place] = answer
            emitted[place] = answer.token_ids[0]
        kept, num_accepted = self._judge(emitted)
        path = [0, *(node + 1 for node in self._tree.paths[kept])]
        tokens = self._chains[kept][:num_accepted]
        if path[num_accepted] in emitted:
            tokens.append(emitted[path[num_accepted]])
        cut = cut_after_stop(tokens, num_accepted, drawing.stops, drawing.room)
        logprobs = None
        if request.logprobs is not None:
            logprobs = [
                token_logprob(token, self._answers[place].logprobs[0], request.logprobs)
                for place, token in zip(path, cut.token_ids, strict=False)
            ]
        drafted = len(request.candidates[kept].token_ids) if request.candidates else 0
        total = time.perf_counter() - began
        queued = min(total, max(answer.queue_seconds for answer in self._answers.values()))
        return VerifyResponse(
            session_id=request.session_id,
            round=request.round,
            candidate=kept if request.candidates else None,
            num_drafted=drafted,
            num_accepted=cut.num_accepted,
            acceptance_mask=[place < cut.num_accepted for place in range(drafted)],
            token_ids=cut.token_ids,
            logprobs=logprobs,
            stop_reason=cut.stop_reason,
            stop_token_id=cut.stop_token_id,
            lossless=self._strategy.lossless(request.sampling.temperature),
            cached_tokens=min(len(drawing.ids), min(answer.cached_tokens for answer in self._answers.values())),
            timings=timings_of(total, queued, max(len(wanted), self._engine.rows)),
        )

    async def _ask(self, places: Places, place: int) -> Answer:
        """The token at one place."""
        row, allowed, tail = places.rows[place], places.allowed, self._tails[place]
        drafted = q = None
        if self._strategy.needs_q and len(tail) < len(self._chains[0]):
            drafted = self._chains[0][len(tail)]
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
            and len(self._chains) == 1
            and len(self._chains[0]) > 0
        )

    async def _by_prompt(self, places: Places) -> dict[int, int]:
        """The likeliest token by place, from one request; places of which it does not tell are left out.

        Of what vLLM had cached it computed no logits: those entries are whatever lay in memory (Answer.computed_after).
        The last place's token was drawn for certain. Two tokens of one log-probability may have had different logits,
        or be told in any order.
        """
        ids, chain = self._drawing.ids, self._chains[0][: self._drawing.room - 1]
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

    def _judge(self, emitted: dict[int, int]) -> tuple[int, int]:
        """The candidate with the longest prefix of tokens that the target emitted too, the lowest index on ties."""
        lengths = []
        for chain, path in zip(self._chains, self._tree.paths, strict=True):
            places = [0, *(node + 1 for node in path)]
            agreed = [emitted.get(place) == token for place, token in zip(places, chain, strict=False)]
            lengths.append(agreed.index(False) if False in agreed else len(agreed))
            if self._log:
                self._log_decisions(chain, places, emitted, lengths[-1])
        most = max(lengths)
        return lengths.index(most), most

    def _log_decisions(self, chain: list[int], places: list[int], emitted: dict[int, int], accepted: int) -> None:
        for number, (token, place) in enumerate(zip(chain, places, strict=False)):
            logger.info(
                "session %s round %d: position %d drafted %d emitted %s: %s",
                self._request.session_id,
                self._request.round,
                self._drawing.length + number,
                token,
                emitted.get(place),
                "accepted" if number < accepted else self._strategy.rejection if number == accepted else "after it",
            )
