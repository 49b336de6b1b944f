"""The target service: sessions around an engine, and an account of what it did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from config.workers import TargetWorkerConfig
from protocol.errors import DeadlineExceeded, NotFollowed
from protocol.messages import (
    GenerateRequest,
    GrammarCheckRequest,
    GrammarCheckResponse,
    SequenceRequest,
    VerifyRequest,
    VerifyResponse,
)
from protocol.worker_info import ModelInfo
from target_worker.checks import check_generate, check_verify
from target_worker.engine import TargetEngine
from target_worker.metrics import TargetMetrics
from worker.call_span import record_call
from worker.checks import check_grammar_type
from worker.session import Session
from worker.sessions import SessionTable


class TargetService:
    """Serves checked calls on sessions. One for each app, once its engine is loaded."""

    def __init__(self, engine: TargetEngine, config: TargetWorkerConfig, metrics: TargetMetrics) -> None:
        self.engine = engine
        self._metrics = metrics
        self.sessions: SessionTable[None] = SessionTable(
            lambda: None,
            self._on_drop,
            config.max_sessions,
            config.max_session_tokens,
            config.session_idle_ms / 1000,
        )

    async def verify(self, request: VerifyRequest) -> VerifyResponse:
        """One round. Raises WireError."""
        deadline = time.monotonic() + request.deadline_ms / 1000
        check_verify(request, self.engine.model.info)

        async def work(session: Session[None]) -> VerifyResponse:
            asked, taken = (request, None) if request.follows is None else self._followed(request, session)
            context_tokens = len(session.ids)
            response = await self.engine.verify(asked, session.ids, _owner(session), deadline)
            if taken is not None:
                response = response.model_copy(update={"candidate": taken})
            session.emit(response.token_ids)
            self._note(request, session, context_tokens, response)
            return response

        response: VerifyResponse = await self.sessions.result(
            self.sessions.follow(request, request.follows, work)
            if request.follows is not None
            else await self.sessions.start(request, work)
        )
        return response

    async def check_grammar(self, request: GrammarCheckRequest) -> GrammarCheckResponse:
        """Returns if the grammar can be honoured. Raises WireError with the reason if not."""
        check_grammar_type(request.grammar, self.engine.model.info)
        await self.engine.check_grammar(request.grammar)
        return GrammarCheckResponse()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[VerifyResponse, None]:
        """Rounds that the engine drives: of plain decoding, or with drafts of its own. Raises WireError.

        `deadline_ms` is the longest wait for each of them.

        Closing the generator stops the engine's work; the session keeps what was emitted.
        """
        check_generate(request, self.engine.model.info)
        rounds = self.engine.rounds()
        served: list[Session[None]] = []

        async def work(session: Session[None]) -> None:
            served.append(session)
            emitted: list[int] = []
            try:
                await self.engine.generate(request, session.ids, _owner(session), rounds, emitted)
            finally:
                session.emit(emitted)

        call = await self.sessions.start(request, work, takes_over=True)
        call.waiters += 1
        call.tell(rounds.close)
        context_tokens = request.context.start + len(request.context.token_ids)
        try:
            while True:
                try:
                    async with asyncio.timeout(request.deadline_ms / 1000):
                        response = await anext(rounds)
                except TimeoutError:
                    raise DeadlineExceeded("no token came in time", "deadline_ms") from None
                except StopAsyncIteration:
                    return
                self._note(request, served[0], context_tokens, response)
                context_tokens = 0
                yield response
        finally:
            self.sessions.leave(call)
            del call  # an error's traceback has this frame, and the call has the error: a cycle

    def _followed(self, request: VerifyRequest, session: Session[None]) -> tuple[VerifyRequest, int]:
        """The verification that goes on from the verdict before, and whose alternative that is. Raises NotFollowed."""
        came = session.came_after(request.context)
        for index, alternative in enumerate(request.alternatives):
            asked = request.following(alternative)
            if alternative.token_ids == came and asked is not None:
                self._metrics.followed(True)
                return asked, index
        self._metrics.followed(False)
        raise NotFollowed("the verdict is none of the alternatives", "alternatives")

    def _note(
        self, request: SequenceRequest, session: Session[None], context_tokens: int, response: VerifyResponse
    ) -> None:
        self._metrics.round_done(context_tokens, response)
        tokens, drafted, accepted = len(response.token_ids), response.num_drafted, response.num_accepted
        session.account.add(response.timings, tokens, drafted=drafted, accepted=accepted)
        name = "verify" if isinstance(request, VerifyRequest) else "generate"
        record_call(name, request, response.timings, tokens=tokens, drafted=drafted, accepted=accepted)

    def _on_drop(self, session: Session[None]) -> None:
        self.engine.model.disown(session.serial)
        session.account.log("target", session.key)

    @property
    def info(self) -> ModelInfo:
        return self.engine.model.info

    async def delete(self, session_id: str) -> None:
        """Forget a session, if it is held; its call in flight ends."""
        await self.sessions.delete(session_id)

    async def close(self, patience: float) -> None:
        """Let running work end, then stop the engine."""
        began = time.monotonic()
        await self.sessions.close(patience)
        left = max(0.0, patience - (time.monotonic() - began))
        await asyncio.to_thread(self.engine.model.close, left)


def _owner(session: Session[None]) -> int | None:
    return session.serial if session.key is not None else None
