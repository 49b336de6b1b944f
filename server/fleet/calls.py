"""What the gateway asks of a worker, over HTTP (server/fleet/client.py) or in this process (tandem/python)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Protocol

from protocol.messages import (
    DraftRequest,
    DraftResponse,
    GenerateRequest,
    Grammar,
    RememberRequest,
    VerifyRequest,
    VerifyResponse,
)
from protocol.prepared import Prepared, PreparedRequest
from protocol.worker_info import ModelInfo, Ready, TokenizerInfo, Translation
from server.fleet.checks import check_generated
from server.fleet.failures import WorkerFailure, WorkerUnreachable

_END_OF_STREAM_SECONDS = 0.5


class WorkerCalls(Protocol):
    """Calls raise WorkerFailure (server.fleet.failures) and nothing else. Times are seconds."""

    @property
    def url(self) -> str: ...

    def open(self) -> None:
        """Called once, in the event loop that makes the calls, before the first of them."""
        ...

    async def close(self) -> None: ...

    async def draft(self, request: DraftRequest, seconds: float, vocabulary_size: int) -> DraftResponse: ...

    async def prepared(self, request: PreparedRequest, seconds: float, vocabulary_size: int) -> list[Prepared]:
        """What a draft worker with `capabilities.prepared` has prepared for the verification under way."""
        ...

    async def remember(self, request: RememberRequest, seconds: float) -> None: ...

    async def learn(self, tokenizer: TokenizerInfo, seconds: float) -> Translation:
        """Have a draft worker get ready for a target with this tokenizer."""
        ...

    async def verify(self, request: VerifyRequest, seconds: float, vocabulary_size: int) -> VerifyResponse:
        """One round. The answer to one that `follows` another is checked once that one's verdict is known."""
        ...

    def generate(self, request: GenerateRequest, seconds: float, vocabulary_size: int) -> AsyncIterator[VerifyResponse]:
        """Rounds until `max_tokens` or a stop; `seconds` is the longest wait for one. Closing it stops the worker.

        Ends without error only if the last round has a stop reason, or `max_tokens` were emitted.
        """
        ...

    async def check_grammar(self, grammar: Grammar, seconds: float) -> None:
        """Raises Refused, with the reason, if the worker cannot honour it."""
        ...

    async def delete_session(self, session_id: str, seconds: float) -> None: ...

    async def model(self, seconds: float) -> ModelInfo: ...

    async def tokenizer(self, seconds: float) -> TokenizerInfo: ...

    async def ready(self, seconds: float) -> Ready: ...


async def checked_rounds(
    rounds: AsyncGenerator[VerifyResponse, None], request: GenerateRequest, vocabulary_size: int, url: str
) -> AsyncIterator[VerifyResponse]:
    """A worker's rounds, each checked, until one has a stop reason or `max_tokens` were emitted; closes `rounds`."""
    remaining = request.max_tokens
    async with aclosing(rounds):
        async for answer in rounds:
            check_generated(request, remaining, answer, vocabulary_size)
            remaining -= len(answer.token_ids)
            yield answer
            if answer.stop_reason is not None or remaining == 0:
                # Read to the end of the stream, so that its connection can be reused.
                with suppress(TimeoutError, WorkerFailure):
                    async with asyncio.timeout(_END_OF_STREAM_SECONDS):
                        await anext(rounds, None)
                return
    raise WorkerUnreachable("cut", f"{url}: the stream of rounds ended before it was done")
