"""A worker's service in this process, behind the interface that the gateway's HTTP client has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any, Generic, TypeVar

from draft_worker.service import DraftService
from protocol.errors import WireError
from protocol.messages import (
    DraftRequest,
    DraftResponse,
    GenerateRequest,
    Grammar,
    GrammarCheckRequest,
    LearnRequest,
    ModelInfo,
    Ready,
    RememberRequest,
    TokenizerInfo,
    Translation,
    VerifyRequest,
    VerifyResponse,
)
from server.fleet.checks import check_draft, check_generated, check_verify
from server.fleet.failures import TooLate, WorkerFailure, WorkerUnreachable, failure_of
from target_worker.service import TargetService

logger = logging.getLogger(__name__)
S = TypeVar("S", DraftService, TargetService)
T = TypeVar("T")

_END_OF_STREAM_SECONDS = 0.5


class LocalWorker(Generic[S]):
    """Implements server.fleet.calls.WorkerCalls over a loaded service, which it closes. `url` is its name."""

    def __init__(self, url: str, service: S, drain_seconds: float) -> None:
        self.url = url
        self.service: S = service
        self._drain_seconds = drain_seconds
        self._failure: str | None = None

    def fail(self, reason: str) -> None:
        """The engine has died. From any thread."""
        self._failure = reason

    def open(self) -> None:
        pass

    async def close(self) -> None:
        await self.service.close(self._drain_seconds)

    async def draft(self, request: DraftRequest, seconds: float, vocabulary_size: int) -> DraftResponse:
        assert isinstance(self.service, DraftService)
        answer = await self._within(seconds, self.service.draft(request))
        check_draft(request, answer, vocabulary_size)
        return answer

    async def remember(self, request: RememberRequest, seconds: float) -> None:
        assert isinstance(self.service, DraftService)
        await self._within(seconds, self.service.remember(request))

    async def learn(self, tokenizer: TokenizerInfo, seconds: float) -> Translation:
        assert isinstance(self.service, DraftService)
        return await self._within(seconds, self.service.learn(LearnRequest(tokenizer=tokenizer)))

    async def verify(self, request: VerifyRequest, seconds: float, vocabulary_size: int) -> VerifyResponse:
        assert isinstance(self.service, TargetService)
        answer = await self._within(seconds, self.service.verify(request))
        check_verify(request, answer, vocabulary_size)
        return answer

    async def generate(
        self, request: GenerateRequest, seconds: float, vocabulary_size: int
    ) -> AsyncIterator[VerifyResponse]:
        assert isinstance(self.service, TargetService)
        remaining = request.max_tokens
        async with aclosing(self.service.generate(request)) as rounds:
            while (answer := await self._within(seconds, anext(rounds, None))) is not None:
                check_generated(request, remaining, answer, vocabulary_size)
                remaining -= len(answer.token_ids)
                yield answer
                if answer.stop_reason is not None or remaining == 0:
                    with suppress(TimeoutError, WireError):  # its end, so that closing it cancels nothing
                        await asyncio.wait_for(anext(rounds, None), _END_OF_STREAM_SECONDS)
                    return
        raise WorkerUnreachable("cut", f"{self.url}: ended before it was done")

    async def check_grammar(self, grammar: Grammar, seconds: float) -> None:
        assert isinstance(self.service, TargetService)
        await self._within(seconds, self.service.check_grammar(GrammarCheckRequest(grammar=grammar)))

    async def delete_session(self, session_id: str, seconds: float) -> None:
        await self._within(seconds, self.service.delete(session_id))

    async def model(self, seconds: float) -> ModelInfo:
        return self.service.info

    async def tokenizer(self, seconds: float) -> TokenizerInfo:
        engine = self.service.engine
        if engine is None:
            raise WorkerFailure("error", f"{self.url}: drafts without a model and has no tokenizer")
        return engine.tokenizer

    async def ready(self, seconds: float) -> Ready:
        return Ready(ready=self._failure is None, detail=self._failure or "ready")

    async def _within(self, seconds: float, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns, its errors as the gateway knows them. Cancelling it, or the deadline, ends it."""
        if self._failure is not None:
            work.close()
            raise WorkerFailure("not_ready", f"{self.url}: {self._failure}")
        with self._failures(seconds):
            async with asyncio.timeout(seconds):
                return await work

    @contextmanager
    def _failures(self, seconds: float) -> Iterator[None]:
        try:
            yield
        except WireError as error:
            raise failure_of(error.status, error.body().error, self.url) from error
        except TimeoutError as error:
            raise TooLate(f"{self.url}: no answer within {seconds:.2f} s") from error
        except Exception as error:
            logger.exception("%s failed", self.url)
            raise WorkerFailure("error", f"{self.url}: the worker failed to serve this request") from error
