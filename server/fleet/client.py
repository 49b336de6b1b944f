"""The worker's API as typed calls: requests validated on the way out, answers on the way in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
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
    RememberRequest,
    RememberResponse,
    VerifyRequest,
    VerifyResponse,
)
from protocol.prepared import Prepared, PreparedRequest, PreparedResponse
from protocol.worker_info import LearnRequest, ModelInfo, Ready, TokenizerInfo, Translation
from server.fleet.calls import checked_rounds
from server.fleet.checks import check_draft, check_prepared, check_verify
from server.fleet.failures import BadAnswer, Refused, WorkerFailure
from server.fleet.transport import Transport

Answer = TypeVar("Answer", bound=BaseModel)

_MAX_SMALL = 65_536
_MAX_ANSWER = 4 * 2**20
_MAX_MODEL = 2**20
# A stream that breaks off has no status any more: under these codes any other worker would refuse it too.
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
        # An older worker refuses fields that it does not know, even at their defaults.
        body = request.model_dump_json(exclude_none=True).encode()
        answer = _parse(DraftResponse, await self._call("/v1/draft", body, seconds))
        check_draft(request, answer, vocabulary_size)
        return answer

    async def prepared(self, request: PreparedRequest, seconds: float, vocabulary_size: int) -> list[Prepared]:
        answer = await self._post("/v1/prepared", request, PreparedResponse, seconds)
        check_prepared(request, answer, vocabulary_size)
        return answer.prepared

    async def remember(self, request: RememberRequest, seconds: float) -> None:
        await self._post("/v1/remember", request, RememberResponse, seconds)

    async def learn(self, tokenizer: TokenizerInfo, seconds: float) -> Translation:
        return await self._post("/v1/vocabulary", LearnRequest(tokenizer=tokenizer), Translation, seconds)

    async def verify(self, request: VerifyRequest, seconds: float, vocabulary_size: int) -> VerifyResponse:
        # An older worker refuses fields that it does not know, even at their defaults.
        unknown = {"follows", "alternatives"} if request.follows is None else None
        body = request.model_dump_json(exclude=unknown).encode()
        answer = _parse(VerifyResponse, await self._call("/v1/verify", body, seconds))
        if request.follows is None:
            check_verify(request, answer, vocabulary_size)
        return answer

    def generate(self, request: GenerateRequest, seconds: float, vocabulary_size: int) -> AsyncIterator[VerifyResponse]:
        body = request.model_dump_json().encode()
        lines = self._transport.lines("/v1/generate", body, seconds=seconds, max_line=_MAX_ANSWER)
        return checked_rounds(_rounds(lines), request, vocabulary_size, f"{self.url}/v1/generate")

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


async def _rounds(lines: AsyncGenerator[bytes, None]) -> AsyncGenerator[VerifyResponse, None]:
    async with aclosing(lines):
        async for line in lines:
            yield _parse_round(line)


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
