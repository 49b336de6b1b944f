"""Streamed requests to any OpenAI-compatible server, with the time at which each chunk came."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp

from tandem.bench.errors import BenchError, RequestFailure
from tandem.bench.samples import Reply

_CONNECT_SECONDS = 10.0
_BUFFER_BYTES = 2**20
_MOST_WORDS = 300


@dataclass
class Server:
    """One server and what it says of itself. Use it within `async with`: it holds the connections.

    `speaks_tandem`: it takes the fields `speculative` and `cache_salt`.
    """

    name: str
    url: str
    key: str | None
    timeout: float
    model: str = ""
    card: Mapping[str, Any] = field(default_factory=dict)
    speaks_tandem: bool = True
    _http: aiohttp.ClientSession = field(init=False)

    async def __aenter__(self) -> Self:
        self.url = self.url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        self._http = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=self.timeout, sock_connect=_CONNECT_SECONDS),
            connector=aiohttp.TCPConnector(limit=0),
            read_bufsize=_BUFFER_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def look(self) -> None:
        """Learn its model, and whether it is a Tandem. Raises BenchError: there is nothing to measure."""
        try:
            found = await self._get("/v1/models")
            cards = {str(card["id"]): card for card in found["data"]}
            name = self.model or next(iter(cards))
        except RequestFailure as failure:
            raise BenchError(f"{self.name} at {self.url}: {failure}{_advice(failure)}") from None
        except (LookupError, TypeError, AttributeError, StopIteration):
            raise BenchError(
                f"{self.name} at {self.url}: /v1/models names no model: is it OpenAI-compatible?"
            ) from None
        if name not in cards:
            raise BenchError(f"{self.name} at {self.url}: there is no model {name!r}; it has {', '.join(cards)}")
        self.model, self.card = name, cards[name]
        self.speaks_tandem = self.card.get("owned_by") == "tandem"

    async def _get(self, path: str) -> Any:
        try:
            async with self._http.get(self.url + path) as answer:
                if answer.status != 200:
                    raise RequestFailure(await _refusal(answer), answer.status)
                return await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise RequestFailure(_words(error)) from None

    async def chat(self, messages: Sequence[Mapping[str, str]], **fields: Any) -> Reply:
        """One streamed chat completion. Raises RequestFailure."""
        return await self._stream("/v1/chat/completions", {"messages": list(messages), **fields})

    async def complete(self, prompt: str, **fields: Any) -> Reply:
        """One streamed text completion. Raises RequestFailure."""
        return await self._stream("/v1/completions", {"prompt": prompt, **fields})

    async def _stream(self, path: str, body: Mapping[str, Any]) -> Reply:
        usage = {"include_usage": True, **({"continuous_usage_stats": True} if self.speaks_tandem else {})}
        body = {"model": self.model, **body, "stream": True, "stream_options": usage}
        read = _Reading()
        began = time.perf_counter()
        try:
            async with self._http.post(self.url + path, json=body) as answer:
                if answer.status != 200:
                    raise RequestFailure(await _refusal(answer), answer.status)
                async for line in answer.content:
                    if line.startswith(b"data:"):
                        read.event(line[5:].strip(), time.perf_counter() - began)
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise RequestFailure(_words(error)) from None
        return read.reply(time.perf_counter() - began)


class _Reading:
    """A stream of events, as far as it has been read."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._arrivals: list[float] = []
        self._first_tokens = 1
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._done = False

    def event(self, data: bytes, seconds: float) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        chunk = json.loads(data)
        if chunk.get("error"):
            error = chunk["error"]
            raise RequestFailure(str(error.get("message") if isinstance(error, dict) else error)[:_MOST_WORDS])
        self._last |= {key: chunk[key] for key in ("metrics", "tandem") if chunk.get(key)}
        self._usage = chunk.get("usage") or self._usage
        said = ""
        for choice in chunk.get("choices") or ():
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            said += _text_of(choice)
        if said:
            self._text.append(said)
            self._arrivals.append(seconds)
            if len(self._arrivals) == 1 and self._usage:
                self._first_tokens = int(self._usage.get("completion_tokens") or 1)

    def reply(self, seconds: float) -> Reply:
        if not self._done and self._finish_reason is None:
            raise RequestFailure("the stream ended before the answer did")
        return Reply(
            text="".join(self._text),
            # A server that counts no tokens sends one a chunk, mostly.
            tokens=int(self._usage.get("completion_tokens") or len(self._arrivals)),
            prompt_tokens=int(self._usage.get("prompt_tokens") or 0),
            finish_reason=self._finish_reason,
            seconds=seconds,
            arrivals=tuple(self._arrivals),
            first_tokens=self._first_tokens,
            speculation=(self._last.get("metrics") or {}).get("speculative_decoding"),
            lossless=(self._last.get("tandem") or {}).get("lossless"),
        )


def _text_of(choice: Mapping[str, Any]) -> str:
    if "text" in choice:
        return choice["text"] or ""
    delta = choice.get("delta") or {}
    thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
    return f"{thought}{delta.get('content') or ''}"


async def _refusal(answer: aiohttp.ClientResponse) -> str:
    text = (await answer.content.read(_BUFFER_BYTES)).decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        words = str(error["message"]) if isinstance(error, dict) else str(error)
    except (ValueError, LookupError, TypeError):
        words = text
    return f"HTTP {answer.status}: {words.strip()[:_MOST_WORDS]}"


def _advice(failure: RequestFailure) -> str:
    if failure.status in (401, 403):
        return " (--api-key, or the variable TANDEM_API_KEY)"
    return ""


def _words(error: Exception) -> str:
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return "no whole answer in time"
    if isinstance(error, aiohttp.InvalidURL):
        return "that is no address"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "it cannot be reached (is it running?)"
    if isinstance(error, (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError)):
        return "the connection was cut"
    return f"no answer as OpenAI's API has them ({type(error).__name__}: {error})"[:_MOST_WORDS]
