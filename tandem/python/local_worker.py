"""A worker's service in this process, behind the interface that the gateway's HTTP client has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Generic, TypeVar

from draft_worker.service import DraftService
from protocol.errors import WireError
from protocol.messages import (
    DraftRequest,
    DraftResponse,
    GenerateRequest,
    Grammar,
    GrammarCheckRequest,
    RememberRequest,
    VerifyRequest,
    VerifyResponse,
)
from protocol.prepared import Prepared, PreparedRequest
from protocol.worker_info import LearnRequest, ModelInfo, Ready, TokenizerInfo, Translation
from server.fleet.calls import checked_rounds
from server.fleet.checks import check_draft, check_prepared, check_verify
from server.fleet.failures import TooLate, WorkerFailure, failure_of
from target_worker.service import TargetService

logger = logging.getLogger(__name__)
S = TypeVar("S", DraftService, TargetService)
T = TypeVar("T")


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

    async def prepared(self, request: PreparedRequest, seconds: float, vocabulary_size: int) -> list[Prepared]:
        assert isinstance(self.service, DraftService)
        answer = await self._within(seconds, self.service.prepared(request))
        check_prepared(request, answer, vocabulary_size)
        return answer.prepared

    async def remember(self, request: RememberRequest, seconds: float) -> None:
        assert isinstance(self.service, DraftService)
        await self._within(seconds, self.service.remember(request))

    async def learn(self, tokenizer: TokenizerInfo, seconds: float) -> Translation:
        assert isinstance(self.service, DraftService)
        return await self._within(seconds, self.service.learn(LearnRequest(tokenizer=tokenizer)))

    async def verify(self, request: VerifyRequest, seconds: float, vocabulary_size: int) -> VerifyResponse:
        assert isinstance(self.service, TargetService)
        answer = await self._within(seconds, self.service.verify(request))
        if request.follows is None:
            check_verify(request, answer, vocabulary_size)
        return answer

    def generate(self, request: GenerateRequest, seconds: float, vocabulary_size: int) -> AsyncIterator[VerifyResponse]:
        return checked_rounds(self._rounds(request, seconds), request, vocabulary_size, self.url)

    async def _rounds(self, request: GenerateRequest, seconds: float) -> AsyncGenerator[VerifyResponse, None]:
        assert isinstance(self.service, TargetService)
        async with aclosing(self.service.generate(request)) as rounds:
            while (answer := await self._within(seconds, anext(rounds, None))) is not None:
                yield answer

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
        return engine.model.tokenizer

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
