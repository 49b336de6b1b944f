"""Plain decoding on vLLM: a token a round, each round told as soon as its token is drawn."""

from __future__ import annotations

import asyncio
import time

from engines.channel import Channel
from engines.drawing import Drawing
from engines.vllm.engine import VllmEngine
from engines.vllm.requests import Answer, Logprobs, Place, sampling_params
from protocol.errors import DeadlineExceeded, EngineFailure
from protocol.messages import GenerateRequest, VerifyResponse
from target_worker.strategies.verdicts import cut_after_stop
from target_worker.vllm_answers import check_drawn, timings_of, token_logprob

_POLL_SECONDS = 0.02


class Decoding:
    """One `/v1/generate`: rounds go into `rounds`, their tokens into `emitted`.

    Its coroutines run on the engine's loop. They fail where the rounds stay unread for `stall_seconds`.
    """

    def __init__(
        self,
        engine: VllmEngine,
        request: GenerateRequest,
        drawing: Drawing,
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
                    if await self._tell(token, logprobs, answer):
                        return
        raise EngineFailure("vLLM ended the stream before the model did")

    async def step_by_step(self) -> None:
        """A request for each token, with what the grammar permits there."""
        drawing = self._drawing
        while True:
            place = drawing.after([self._emitted])
            params = sampling_params(Place(place.rows[0], place.allowed), logprobs=self._request.logprobs or 0)
            answer = await self._engine.ask([*drawing.ids, *self._emitted], params, self._request.cache_salt)
            if await self._tell(answer.token_ids[0], answer.logprobs[0], answer):
                return

    async def _tell(self, token: int, logprobs: Logprobs, answer: Answer) -> bool:
        """Put a round; whether it is the last."""
        check_drawn(token, logprobs)
        await self._room()
        drawing, request = self._drawing, self._request
        cut = cut_after_stop([token], 0, drawing.stops, drawing.room - len(self._emitted))
        self._emitted.append(token)
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        self._rounds.put(
            VerifyResponse(
                session_id=request.session_id,
                round=request.round,
                candidate=None,
                num_drafted=0,
                num_accepted=0,
                acceptance_mask=[],
                token_ids=[token],
                logprobs=[token_logprob(token, logprobs, request.logprobs)] if request.logprobs is not None else None,
                stop_reason=cut.stop_reason,
                stop_token_id=cut.stop_token_id,
                lossless=True,
                cached_tokens=answer.cached_tokens,
                timings=timings_of(seconds, min(answer.queue_seconds, seconds), self._engine.rows),
            )
        )
        return cut.stop_reason is not None

    async def _room(self) -> None:
        give_up = time.monotonic() + self._stall_seconds
        while not self._rounds.has_room():
            if time.monotonic() >= give_up:
                raise DeadlineExceeded("the stream was left unread for too long")
            await asyncio.sleep(_POLL_SECONDS)
