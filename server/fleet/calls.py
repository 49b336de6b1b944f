"""What the gateway asks of a worker, over HTTP (server/fleet/client.py) or in this process (tandem/python)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from protocol.messages import (
    DraftRequest,
    DraftResponse,
    GenerateRequest,
    Grammar,
    ModelInfo,
    Ready,
    RememberRequest,
    TokenizerInfo,
    Translation,
    VerifyRequest,
    VerifyResponse,
)


class WorkerCalls(Protocol):
    """Calls raise WorkerFailure (server.fleet.failures) and nothing else. Times are seconds."""

    @property
    def url(self) -> str: ...

    def open(self) -> None:
        """Called once, in the event loop that makes the calls, before the first of them."""
        ...

    async def close(self) -> None: ...

    async def draft(self, request: DraftRequest, seconds: float, vocabulary_size: int) -> DraftResponse: ...

    async def remember(self, request: RememberRequest, seconds: float) -> None: ...

    async def learn(self, tokenizer: TokenizerInfo, seconds: float) -> Translation:
        """Have a draft worker get ready for a target with this tokenizer."""
        ...

    async def verify(self, request: VerifyRequest, seconds: float, vocabulary_size: int) -> VerifyResponse: ...

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
