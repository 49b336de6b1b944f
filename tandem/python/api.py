"""AsyncTandem, and Tandem, which runs one in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import httpx

from config.urls import worker_url
from tandem.python.answers import Answer
from tandem.python.app_transport import AppTransport
from tandem.python.client import AsyncStream, Client
from tandem.python.errors import Misuse
from tandem.python.models import AUTO, draft_of, target_of
from tandem.python.requests import listed
from tandem.python.stack import Plan, Running, Workers
from tandem.python.threads import LoopThread, in_daemon_thread

Messages = str | Sequence[Mapping[str, Any]]
T = TypeVar("T")

_CONNECT_SECONDS = 5.0
_READ_SECONDS = 3600.0


class AsyncTandem:
    """A target model and its draft in this process, for asyncio. `async with` loads and closes them.

    The arguments are Tandem's. Bound to the event loop in which it was first used.
    """

    def __init__(
        self,
        target: Any,
        *,
        draft: Any = AUTO,
        tokenizer: Any = None,
        device: str | None = None,
        dtype: str | None = None,
        threads: int | None = None,
        batch_invariant: bool = False,
        worker_token: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        draft_options: Mapping[str, Any] | None = None,
        gateway_options: Mapping[str, Any] | None = None,
        ready_timeout: float = 60.0,
    ) -> None:
        of_target = target_of(target, tokenizer)
        options = {"target_options": target_options, "draft_options": draft_options, "gateway_options": gateway_options}
        for name, given_options in options.items():
            if given_options is not None and not isinstance(given_options, Mapping):
                raise TypeError(f"{name}: must be a mapping of settings, not {type(given_options).__name__}")
        given = {"device": device, "dtype": dtype, "threads": threads, "batch_invariant": batch_invariant or None}
        self._plan: Plan | None = Plan(
            target=of_target,
            draft=draft_of(draft, of_target),
            target_options={
                **{name: value for name, value in given.items() if value is not None},
                **(target_options or {}),
            },
            draft_options=draft_options or {},
            gateway_options=gateway_options or {},
            worker_token=worker_token,
            ready_seconds=ready_timeout,
        )
        self._clear()

    @classmethod
    def connect(cls, url: str, *, api_key: str | None = None, timeout: float = _READ_SECONDS) -> Self:
        """The same calls against a gateway that runs, at http://host:port; see Tandem.connect."""
        self = cls.__new__(cls)
        self._plan = None
        self._clear()
        address = worker_url(url).removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Timeout(timeout, connect=_CONNECT_SECONDS)
        self._connection = lambda: httpx.AsyncClient(base_url=address, headers=headers, timeout=limits, trust_env=False)
        return self

    def _clear(self) -> None:
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Lock | None = None
        self._workers: Workers | None = None
        self._running: Running | None = None
        self._client: Client | None = None
        self._connection: Callable[[], httpx.AsyncClient] | None = None
        self._closed = False

    async def start(self) -> None:
        """Load what is to be loaded; every call does so by itself. Raises ModelUnavailable, Misuse, ValueError."""
        await self._ready()

    @property
    def model(self) -> str:
        """The served model's id; "" before it is loaded."""
        return self._client.model if self._client is not None else ""

    async def chat(self, messages: Messages, **options: Any) -> Answer:
        """The answer to a conversation: messages as the API has them, or a string as the user's only one.

        `options` are the API's fields (docs/api.md) and those of its `speculative` block. Raises RequestFailed.
        """
        return await (await self._ready()).chat(messages, options)

    @overload
    async def generate(self, prompt: str | list[int], **options: Any) -> Answer: ...
    @overload
    async def generate(self, prompt: list[str] | list[list[int]], **options: Any) -> list[Answer]: ...
    async def generate(self, prompt: str | Sequence[Any], **options: Any) -> Answer | list[Answer]:
        """What the model writes after a prompt (text or token ids); of a list of prompts, all as one batch."""
        return await self._generate(prompt, options)

    async def _generate(self, prompt: str | Sequence[Any], options: Mapping[str, Any]) -> Answer | list[Answer]:
        client = await self._ready()
        if isinstance(prompt, str):
            return await client.complete(prompt, options)
        content = listed("prompt", prompt, "a text, token ids, or several of either")
        if content and isinstance(content[0], int):
            return await client.complete(content, options)
        if any(isinstance(one, Mapping) for one in content):
            raise TypeError("generate() goes on with prompts; messages are for chat() and stream()")
        return await client.complete_all(content, options)

    def stream(self, prompt: str | Sequence[Any], **options: Any) -> AsyncStream:
        """Pieces of text as they come: after a prompt, or in answer to messages. `async for` over it.

        Raises Misuse unless AsyncTandem has been started, by `async with`, `start` or another call.
        """
        self._guard()
        if self._client is None:
            raise Misuse("not started yet: use `async with`, or await start() first")
        return self._client.stream(prompt, options)

    async def close(self) -> None:
        """End what runs and let go of the models. Closing twice is no error."""
        if self._closed or os.getpid() != self._pid:  # of a forked process nothing is here
            return
        self._guard()
        self._closed = True
        client, running = self._client, self._running
        self._client = self._running = None
        try:
            if client is not None:
                await client.close()
        finally:
            if running is not None:
                await running.close()
            elif self._workers is not None:
                self._workers.abandon()
            self._workers = None

    async def __aenter__(self) -> Self:
        await self._ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _guard(self) -> None:
        if os.getpid() != self._pid:
            raise Misuse("made in another process: threads and models do not survive a fork; make one in each process")
        if self._closed:
            raise Misuse("closed already: make a new one")
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise Misuse("used in another event loop before: make one for each, or use Tandem, which has its own")

    async def _ready(self) -> Client:
        self._guard()
        if self._starting is None:
            self._loop, self._starting = asyncio.get_running_loop(), asyncio.Lock()
        async with self._starting:
            self._guard()
            if self._client is None:
                self._client = await self._start()
            return self._client

    async def _start(self) -> Client:
        if self._plan is None:
            assert self._connection is not None
            client = Client(self._connection())
        else:
            plan = self._plan
            if self._workers is None:
                self._workers = await in_daemon_thread(lambda: Workers(plan), lambda late: late.abandon())
            workers, self._workers = self._workers, None  # from here on they are closed with what runs over them
            running = Running(workers, plan.ready_seconds)
            await running.start()
            self._running = running
            client = Client(httpx.AsyncClient(transport=AppTransport(running.app), base_url="http://tandem"))
        try:
            await client.start()
        except BaseException:
            await client.close()
            if self._running is not None:
                await self._running.close()
                self._running = None
            raise
        return client


class Tandem:
    """A target model and its draft in this process: the gateway's own rounds over both, with no server.

    >>> with Tandem("SmolLM2-135M-Instruct") as t:
    ...     print(t.chat("Name three rivers.", max_tokens=40).text)

    Args:
        target: the model whose text is wanted: a name, a folder, a GGUF file, a transformers model (with `tokenizer`,
            or as a tuple of both), or the http(s) address of a target worker.
        draft: "auto", the target's pair as `tandem up` picks it; "lookup"; a model, given like the target (an object
            without a tokenizer has the target's); the address of a draft worker; None for plain decoding.
        device, dtype, threads, batch_invariant: as the settings of these names, for both models.
        worker_token: what workers at addresses ask for.
        target_options, draft_options, gateway_options: any other settings by name (docs/configuration.md).
        ready_timeout: seconds for workers at addresses to be ready.

    Loads in the constructor. May be used from several threads at once. Raises ModelUnavailable if a model can't be
    loaded, TypeError and ValueError for arguments.
    """

    def __init__(self, target: Any, **arguments: Any) -> None:
        self._begin(AsyncTandem(target, **arguments))

    @classmethod
    def connect(cls, url: str, *, api_key: str | None = None, timeout: float = _READ_SECONDS) -> Self:
        """The same calls against a gateway that runs (`tandem up`, `tandem serve`), at http://host:port.

        `timeout` is seconds without a byte. Raises ModelUnavailable if it can't be reached, RequestFailed.
        """
        self = cls.__new__(cls)
        self._begin(AsyncTandem.connect(url, api_key=api_key, timeout=timeout))
        return self

    def _begin(self, inner: AsyncTandem) -> None:
        self._inner = inner
        if inner._plan is not None:
            # In this thread, where Ctrl-C reaches it.
            inner._workers = Workers(inner._plan)
        self._thread = LoopThread()
        self._finalizer = weakref.finalize(self, _let_go, self._thread, inner)
        self._finalizer.atexit = False  # all threads are daemons: at the process's end there is nothing to wait for
        try:
            self._thread.run(inner.start())
        except BaseException:
            self.close()
            raise

    @property
    def model(self) -> str:
        """The served model's id."""
        return self._inner.model

    def chat(self, messages: Messages, **options: Any) -> Answer:
        """The answer to a conversation: messages as the API has them, or a string as the user's only one.

        `options` are the API's fields (docs/api.md) and those of its `speculative` block: temperature, max_tokens,
        seed, stop, tools, response_format, prediction, draft_tokens, strategy, … `speculative=False`: plain decoding.
        Raises RequestFailed, Misuse; TypeError for what is no field.
        """
        return self._run(lambda: self._inner.chat(messages, **options))

    @overload
    def generate(self, prompt: str | list[int], **options: Any) -> Answer: ...
    @overload
    def generate(self, prompt: list[str] | list[list[int]], **options: Any) -> list[Answer]: ...
    def generate(self, prompt: str | Sequence[Any], **options: Any) -> Answer | list[Answer]:
        """What the model writes after a prompt (text or token ids); of a list of prompts, all as one batch.

        Unless `seed` is given, each prompt of a list has a seed of its own.
        """
        return self._run(lambda: self._inner._generate(prompt, options))

    def stream(self, prompt: str | Sequence[Any], **options: Any) -> Stream:
        """Pieces of text as they come: after a prompt, or in answer to messages. Leaving the loop stops the model."""

        async def begin() -> AsyncStream:
            return self._inner.stream(prompt, **options)

        return Stream(self, self._run(begin))

    def close(self) -> None:
        """End what runs and let go of the models. Closing twice is no error."""
        if os.getpid() != self._inner._pid or self._thread.ended:
            return
        self._finalizer.detach()
        try:
            self._thread.run(self._inner.close())
        finally:
            self._thread.end()

    def __enter__(self) -> Self:
        self._guard()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _guard(self) -> None:
        if os.getpid() != self._inner._pid:
            raise Misuse("made in another process: threads and models do not survive a fork; make one in each process")
        if self._thread.ended:
            raise Misuse("closed already: make a new one")

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._guard()
        return self._thread.run(work())


class Stream:
    """Pieces of text, for a plain `for`. `answer` is the whole answer once the stream is at its end; None before."""

    def __init__(self, owner: Tandem, stream: AsyncStream) -> None:
        self._owner = owner
        self._stream = stream
        self._ended = False

    @property
    def answer(self) -> Answer | None:
        return self._stream.answer

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._ended:
            raise StopIteration
        try:
            return self._owner._run(self._stream.__anext__)
        except StopAsyncIteration:
            self._ended = True
            raise StopIteration from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the model, if it is still at work."""
        if not self._ended:
            self._ended = True
            if not self._owner._thread.ended:
                self._owner._run(self._stream.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended and os.getpid() == self._owner._inner._pid:
            self._owner._thread.begin(self._stream.aclose())


def _let_go(thread: LoopThread, inner: AsyncTandem) -> None:
    """A Tandem that was dropped without being closed: its models end, and nobody waits for that."""
    if os.getpid() == inner._pid and not thread.ended:
        thread.begin(inner.close(), then_end=True)
