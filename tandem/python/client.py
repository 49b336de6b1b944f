"""The calls themselves, over HTTP's messages: to a gateway of this process, or to one that runs elsewhere."""

from __future__ import annotations

import asyncio
import json
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self

import httpx

from tandem.python.answers import Answer, answers_of, stats_of
from tandem.python.errors import Misuse, ModelUnavailable, RequestFailed, TandemError
from tandem.python.requests import CHAT, COMPLETIONS, body_of, conversation, failure, messages_of

_AT_ONCE = 32
"""Requests that a list of prompts has under way: as many as fill a batch, and fewer than a gateway takes by default."""
_STATUS_OF = {"invalid_request_error": 400, "rate_limit_error": 429, "service_unavailable_error": 503}
"""Of an error within a stream, which had begun with 200."""


class Client:
    """Of one gateway. `http` has its address, or the transport that stands for one."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._streams: weakref.WeakSet[AsyncStream] = weakref.WeakSet()
        self.model = ""

    async def start(self) -> None:
        """Learn the served model's name. Raises ModelUnavailable, RequestFailed."""
        models = await self._json("GET", "/v1/models", None)
        self.model = str(models["data"][0]["id"])

    async def close(self) -> None:
        for stream in list(self._streams):
            with suppress(RuntimeError):  # somebody waits for its next piece, and will be told
                await stream.abandon()
        await self._http.aclose()

    async def chat(self, messages: str | Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Answer:
        [answer, *_] = await self._whole(CHAT, {"messages": messages_of(messages)}, options)
        return answer

    async def complete(self, prompt: str | Sequence[int], options: Mapping[str, Any]) -> Answer:
        [answer, *_] = await self._whole(COMPLETIONS, {"prompt": prompt}, options)
        return answer

    async def complete_all(self, prompts: Sequence[str | Sequence[int]], options: Mapping[str, Any]) -> list[Answer]:
        """All at once, so that the target's passes serve them together. The first that fails ends the others."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(prompt: str | Sequence[int]) -> Answer:
            async with room:
                return await self.complete(prompt, options)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(prompt)) for prompt in prompts]
        except* TandemError as failures:
            first: BaseException = failures
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise first from None
        return [task.result() for task in tasks]

    def stream(self, prompt: str | Sequence[Any], options: Mapping[str, Any]) -> AsyncStream:
        path, content = conversation(prompt)
        body = body_of({"model": self.model, **content}, options)
        if body.get("n") not in (None, 1):
            raise TypeError("n: a stream has one answer; use chat() or generate()")
        body["stream"] = True
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        stream = AsyncStream(self._events(path, body))
        self._streams.add(stream)
        return stream

    async def _whole(self, path: str, content: Mapping[str, Any], options: Mapping[str, Any]) -> list[Answer]:
        body = body_of({"model": self.model, **content}, options)
        began = time.perf_counter()
        found = await self._json("POST", path, body)
        return answers_of(found, time.perf_counter() - began)

    async def _json(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        async with self._answer(method, path, body) as response:
            return json.loads(await response.aread())

    async def _events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a stream, the last of them included. Raises RequestFailed."""
        async with self._answer("POST", path, body) as response:
            pending = b""
            # Line by line at b"\n" alone: httpx's own lines end at U+2028 too, which JSON may hold as it is.
            async for piece in response.aiter_bytes():
                *lines, pending = (pending + piece).split(b"\n")
                for line in lines:
                    if not line.startswith(b"data: "):
                        continue
                    if line == b"data: [DONE]":
                        return
                    chunk = json.loads(line.removeprefix(b"data: "))
                    if "error" in chunk:
                        raise failure(_STATUS_OF.get(chunk["error"].get("type"), 500), chunk)
                    yield chunk
        raise RequestFailed(502, "the stream broke off before its end")

    @asynccontextmanager
    async def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> AsyncIterator[httpx.Response]:
        """A successful answer, yet to be read; whatever ends the block ends the request."""
        try:
            # As JSON's own numbers: NaN and infinities are refused here, with the same words as everywhere.
            content = None if body is None else json.dumps(body, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise TypeError(f"the call's arguments can't be written as JSON: {error}") from None
        headers = {"Content-Type": "application/json"} if content is not None else None
        try:
            async with self._http.stream(method, path, content=content, headers=headers) as response:
                if response.status_code != 200:
                    raise failure(response.status_code, _lenient(await response.aread()))
                yield response
        except httpx.ConnectError as error:
            raise ModelUnavailable(f"{self._http.base_url} can't be reached: {error}") from error
        except httpx.TimeoutException as error:
            raise RequestFailed(504, f"{self._http.base_url}: no answer in time") from error
        except httpx.TransportError as error:
            raise RequestFailed(502, f"{self._http.base_url}: the connection broke off: {error}") from error


class AsyncStream:
    """Pieces of text as they are generated. Leaving it early (`break`, `aclose`) stops the model.

    `answer` is the whole answer, once the stream has come to its end; None before. Thoughts and tool calls are not
    among the pieces; the answer has them.
    """

    def __init__(self, events: AsyncGenerator[dict[str, Any], None]) -> None:
        self.answer: Answer | None = None
        self._events = events
        self._pieces = self._read()
        self._abandoned = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        if self._abandoned and self.answer is None:
            raise Misuse("closed before the stream's end")
        return await anext(self._pieces)

    async def aclose(self) -> None:
        await self._pieces.aclose()
        await self._events.aclose()

    async def abandon(self) -> None:
        """Its owner closes: whoever goes on reading must not take what there is for the whole text."""
        self._abandoned = True
        await self.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _read(self) -> AsyncGenerator[str, None]:
        began = time.perf_counter()
        first: float | None = None
        text: list[str] = []
        thought: list[str] = []
        calls: list[dict[str, Any]] = []
        reason = "stop"
        last: dict[str, Any] = {}
        async for last in self._events:
            for choice in last["choices"]:
                delta = choice.get("delta") or {}
                piece = choice["text"] if "text" in choice else delta.get("content") or ""
                thought.append(delta.get("reasoning_content") or "")
                _add_calls(calls, delta.get("tool_calls") or ())
                reason = choice["finish_reason"] or reason
                if piece:
                    first = time.perf_counter() - began if first is None else first
                    text.append(piece)
                    yield piece
        self.answer = Answer(
            text="".join(text),
            finish_reason=reason,
            stats=stats_of(last, time.perf_counter() - began, first),
            seed=last["tandem"]["seed"],
            reasoning="".join(thought) or None,
            tool_calls=calls,
            raw=last,
        )


def _add_calls(calls: list[dict[str, Any]], deltas: Sequence[Mapping[str, Any]]) -> None:
    """The first delta of a call has everything but the arguments, which follow."""
    for delta in deltas:
        function = delta["function"]
        if "id" in delta:
            named = {"name": function["name"], "arguments": function.get("arguments", "")}
            calls.append({"id": delta["id"], "type": "function", "function": named})
        else:
            calls[delta["index"]]["function"]["arguments"] += function.get("arguments", "")


def _lenient(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
