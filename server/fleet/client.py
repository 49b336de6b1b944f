"""The worker's API as typed calls: requests validated on the way out, answers on the way in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from protocol.errors import BadRequest, ErrorBody
from protocol.messages import (
    MAX_TOKENIZER_BYTES,
    DraftRequest,
    DraftResponse,
    GenerateRequest,
    Grammar,
    GrammarCheckRequest,
    GrammarCheckResponse,
    LearnRequest,
    ModelInfo,
    Ready,
    RememberRequest,
    RememberResponse,
    TokenizerInfo,
    Translation,
    VerifyRequest,
    VerifyResponse,
)
from server.fleet.checks import check_draft, check_generated, check_verify
from server.fleet.failures import BadAnswer, Refused, WorkerFailure, WorkerUnreachable
from server.fleet.transport import Transport

Answer = TypeVar("Answer", bound=BaseModel)

_END_OF_STREAM_SECONDS = 0.5
_MAX_SMALL = 65_536
_MAX_ANSWER = 4 * 2**20
_MAX_MODEL = 2**20
# A stream has no status by the time it breaks off: these codes say that any other worker would refuse it too.
_REQUESTS_FAULT = frozenset({"bad_request", "unsupported", "context_too_long", "invalid_grammar"})


class WorkerClient:
    """Calls raise WorkerFailure (server.fleet.failures) and nothing else. Times are seconds."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def url(self) -> str:
        return self._transport.url

    def open(self) -> None:
        self._transport.open()

    async def close(self) -> None:
        await self._transport.close()

    async def draft(self, request: DraftRequest, seconds: float, vocabulary_size: int) -> DraftResponse:
        # An older worker refuses fields that it does not know, even where they say nothing.
        body = request.model_dump_json(exclude_none=True).encode()
        answer = _parse(DraftResponse, await self._call("/v1/draft", body, seconds))
        check_draft(request, answer, vocabulary_size)
        return answer

    async def remember(self, request: RememberRequest, seconds: float) -> None:
        await self._post("/v1/remember", request, RememberResponse, seconds)

    async def learn(self, tokenizer: TokenizerInfo, seconds: float) -> Translation:
        return await self._post("/v1/vocabulary", LearnRequest(tokenizer=tokenizer), Translation, seconds)

    async def verify(self, request: VerifyRequest, seconds: float, vocabulary_size: int) -> VerifyResponse:
        answer = await self._post("/v1/verify", request, VerifyResponse, seconds)
        check_verify(request, answer, vocabulary_size)
        return answer

    async def generate(
        self, request: GenerateRequest, seconds: float, vocabulary_size: int
    ) -> AsyncIterator[VerifyResponse]:
        """Rounds until `max_tokens` or a stop; `seconds` is the longest wait for one. Closing it stops the worker.

        Ends without error only if the last round has a stop reason, or `max_tokens` were emitted.
        """
        remaining = request.max_tokens
        lines = self._transport.lines(
            "/v1/generate", request.model_dump_json().encode(), seconds=seconds, max_line=_MAX_ANSWER
        )
        async with aclosing(lines):  # type: ignore[type-var]
            async for line in lines:
                answer = _parse_round(line)
                check_generated(request, remaining, answer, vocabulary_size)
                remaining -= len(answer.token_ids)
                yield answer
                if answer.stop_reason is not None or remaining == 0:
                    await _finish(lines)
                    return
        raise WorkerUnreachable("cut", f"{self.url}/v1/generate: ended before it was done")

    async def check_grammar(self, grammar: Grammar, seconds: float) -> None:
        """Raises Refused, with the reason, if the worker cannot honour it."""
        request = GrammarCheckRequest(grammar=grammar)
        await self._post("/v1/grammar/check", request, GrammarCheckResponse, seconds)

    async def delete_session(self, session_id: str, seconds: float) -> None:
        await self._transport.call("DELETE", f"/v1/sessions/{session_id}", None, seconds=seconds, max_bytes=_MAX_SMALL)

    async def model(self, seconds: float) -> ModelInfo:
        return await self._get("/v1/model", ModelInfo, seconds, _MAX_MODEL)

    async def tokenizer(self, seconds: float) -> TokenizerInfo:
        return await self._get("/v1/tokenizer", TokenizerInfo, seconds, MAX_TOKENIZER_BYTES)

    async def ready(self, seconds: float) -> Ready:
        return await self._get("/ready", Ready, seconds, _MAX_SMALL)

    async def _get(self, path: str, kind: type[Answer], seconds: float, max_bytes: int) -> Answer:
        return _parse(kind, await self._transport.call("GET", path, None, seconds=seconds, max_bytes=max_bytes))

    async def _post(self, path: str, request: BaseModel, kind: type[Answer], seconds: float) -> Answer:
        return _parse(kind, await self._call(path, request.model_dump_json().encode(), seconds))

    async def _call(self, path: str, body: bytes, seconds: float) -> bytes:
        return await self._transport.call("POST", path, body, seconds=seconds, max_bytes=_MAX_ANSWER)


async def _finish(lines: AsyncIterator[bytes]) -> None:
    """Read the end of a stream, so that its connection can be used again. What else comes is of no interest."""
    with suppress(TimeoutError, WorkerFailure):
        async with asyncio.timeout(_END_OF_STREAM_SECONDS):
            async for _ in lines:
                return


def _parse(kind: type[Answer], body: bytes) -> Answer:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise BadAnswer(f"not a {kind.__name__}: {where}: {first['msg']}") from None


def _parse_round(line: bytes) -> VerifyResponse:
    if line.startswith(b'{"error"'):
        detail = _parse(ErrorBody, line).error
        if detail.code in _REQUESTS_FAULT:
            raise Refused(BadRequest(detail.message[:500], detail.field))
        raise WorkerFailure("error", f"{detail.code}: {detail.message[:500]}")
    return _parse(VerifyResponse, line)
