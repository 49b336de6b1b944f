"""Decoding on vLLM's own: plainly, a token a round, or in rounds that vLLM drafts for and verifies itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b

from engines.channel import Channel
from engines.drawing import RequestSampling
from engines.sampling.noise import mix_choice
from engines.vllm.engine import VllmEngine
from engines.vllm.reports import Proposals, Reports
from engines.vllm.requests import Answer, Logprobs, Place, drafted_params, sampling_params
from protocol.errors import DeadlineExceeded, EngineFailure
from protocol.messages import GenerateRequest, VerifyResponse
from target_worker.strategies.verdicts import cut_after_stop
from target_worker.verification import respond
from target_worker.vllm.answers import check_drawn, timings_of, token_logprob

_POLL_SECONDS = 0.02


class Decoding:
    """One `/v1/generate`: rounds go into `rounds`, their tokens into `emitted`.

    Its coroutines run on the engine's loop. They fail if the rounds stay unread for `stall_seconds`.
    """

    def __init__(
        self,
        engine: VllmEngine,
        request: GenerateRequest,
        drawing: RequestSampling,
        rounds: Channel[VerifyResponse],
        emitted: list[int],
        stall_seconds: float,
    ) -> None:
        self._engine = engine
        self._request = request
        self._drawing = drawing
        self._rounds = rounds
        self._emitted = emitted
        self._stall_seconds = stall_seconds
        self._last = time.perf_counter()

    async def stream(self) -> None:
        """One request for all tokens."""
        drawing = self._drawing
        params = sampling_params(
            Place(drawing.after([[]]).rows[0]),
            max_tokens=drawing.room,
            stops=drawing.stops,
            logprobs=self._request.logprobs or 0,
            stream=True,
        )
        async with self._engine.stream(drawing.ids, params, self._request.cache_salt) as answers:
            async for answer in answers:
                for token, logprobs in zip(answer.token_ids, answer.logprobs, strict=True):
                    if await self._put_round([token], [logprobs], answer):
                        return
        raise EngineFailure("vLLM ended the stream before the model did")

    async def with_drafts(self, reports: Reports, draft_tokens: int) -> None:
        """One request, whose steps vLLM drafts for and verifies itself: a round a step."""
        drawing, sampling = self._drawing, self._request.sampling
        with reports.follow() as (key, proposals):
            params = drafted_params(
                sampling,
                _own_seed(sampling.seed, self._request.choice_index, drawing.length),
                max_tokens=drawing.room,
                stops=drawing.stops,
                logprobs=self._request.logprobs or 0,
                draft_tokens=draft_tokens,
                key=key,
                cache_salt=self._request.cache_salt,
            )
            async with self._engine.stream(drawing.ids, params, self._request.cache_salt) as answers:
                async for answer in answers:
                    reports.read()
                    begin = drawing.length + len(self._emitted)
                    done = 0
                    for count, draft in steps(begin, answer.token_ids, proposals):
                        step = slice(done, done + count)
                        if await self._put_round(answer.token_ids[step], answer.logprobs[step], answer, draft):
                            return
                        done += count
        raise EngineFailure("vLLM ended the stream before the model did")

    async def step_by_step(self) -> None:
        """A request for each token, with what the grammar permits there."""
        drawing = self._drawing
        while True:
            place = drawing.after([self._emitted])
            params = sampling_params(Place(place.rows[0], place.allowed), logprobs=self._request.logprobs or 0)
            answer = await self._engine.ask([*drawing.ids, *self._emitted], params, self._request.cache_salt)
            if await self._put_round(answer.token_ids, answer.logprobs, answer):
                return

    async def _put_round(
        self, tokens: list[int], logprobs: list[Logprobs], answer: Answer, draft: Sequence[int] = ()
    ) -> bool:
        """Put one step's tokens as a round; True if it is the last."""
        for token, entries in zip(tokens, logprobs, strict=True):
            check_drawn(token, entries)
        await self._room()
        drawing, request = self._drawing, self._request
        cut = cut_after_stop(tokens, accepted_of(tokens, draft), drawing.stops, drawing.room - len(self._emitted))
        if cut.stop_reason is None:
            # The last token is the target's own, even if it equals the drafted one.
            cut = replace(cut, num_accepted=min(cut.num_accepted, len(tokens) - 1))
        self._emitted.extend(cut.token_ids)
        shown = None
        if request.logprobs is not None:
            entries_of = zip(cut.token_ids, logprobs, strict=False)
            shown = [token_logprob(token, entries, request.logprobs) for token, entries in entries_of]
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        took = timings_of(seconds, min(answer.queue_seconds, seconds), self._engine.rows)
        self._rounds.put(
            respond(
                request, cut, num_drafted=len(draft), logprobs=shown, cached_tokens=answer.cached_tokens, timings=took
            )
        )
        return cut.stop_reason is not None

    async def _room(self) -> None:
        give_up = time.monotonic() + self._stall_seconds
        while not self._rounds.has_room():
            if time.monotonic() >= give_up:
                raise DeadlineExceeded("the stream was left unread for too long")
            await asyncio.sleep(_POLL_SECONDS)


def steps(begin: int, token_ids: list[int], proposals: Proposals) -> Iterator[tuple[int, list[int]]]:
    """The steps that made these tokens, which follow `begin` others: how many each made, and what was drafted for it.

    vLLM reports the tokens of several steps as one if their reader is late; each step's drafts were proposed at the
    length where it began. What was proposed before `begin + len(token_ids)` is taken out of `proposals`.
    """
    end = begin + len(token_ids)
    begins = sorted({begin, *(length for length in proposals if begin < length < end)})
    for first, after in zip(begins, [*begins[1:], end], strict=True):
        draft = proposals.get(first, [])
        if not draft and after - first > 1:  # no report arrived; each step ends with one token of vLLM's own
            draft = token_ids[first - begin : after - begin - 1]
        yield after - first, draft
    for length in [length for length in proposals if length < end]:
        del proposals[length]


def accepted_of(token_ids: Sequence[int], draft: Sequence[int]) -> int:
    """How many of the drafted tokens were emitted."""
    for place, (token, drafted) in enumerate(zip(token_ids, draft, strict=False)):
        if token != drafted:
            return place
    return min(len(token_ids), len(draft))


def _own_seed(seed: int, choice_index: int, length: int) -> int:
    """A seed for vLLM's draws, which ignore positions: a call that continues a text must not repeat draws."""
    digest = blake2b(f"{mix_choice(seed, choice_index)} {length}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
