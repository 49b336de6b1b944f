"""A small client of Tandem's API that keeps what a measurement needs: tokens, counts, and when each chunk came."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from testing.patience import PATIENCE


class ApiFailure(Exception):
    """An answer other than 200, or an error event within a stream (`status` 200)."""

    def __init__(self, status: int, body: Any, text: str = "") -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body
        self.text = text


@dataclass(frozen=True, slots=True)
class Answer:
    """`tokens` are the tokens' bytes (empty unless logprobs were asked for). `arrivals` are the seconds from the
    request to each chunk that held text, `chunk_tokens` the completion tokens known by then. `rounds`: of a stream with
    `report_rounds`, each round as it was reported when it was made."""

    text: str
    tokens: tuple[bytes, ...]
    finish_reason: str | None
    completion_tokens: int
    prompt_tokens: int
    seconds: float
    speculation: Mapping[str, Any] | None = None
    tandem: Mapping[str, Any] | None = None
    arrivals: tuple[float, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    rounds: tuple[Mapping[str, Any], ...] = ()

    @property
    def ttft(self) -> float:
        return self.arrivals[0] if self.arrivals else self.seconds

    @property
    def gaps(self) -> list[float]:
        """Inter-token latency as vLLM's and AIPerf's chunk-wise one: seconds between chunks."""
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]

    def tokens_per_second(self, settle: int = 0) -> float:
        """Decoding speed after the first `settle` tokens (0: after the first chunk)."""
        known = list(zip(self.arrivals, self.chunk_tokens, strict=True))
        start = next((entry for entry in known if entry[1] > settle), known[-1])
        seconds = known[-1][0] - start[0]
        return (known[-1][1] - start[1]) / seconds if seconds > 0 else 0.0

    @property
    def seconds_a_token(self) -> float:
        """Of the tokens after the first chunk, up to the answer's end."""
        return (self.seconds - self.ttft) / max(1, self.completion_tokens - self.chunk_tokens[0])

    @property
    def identity(self) -> tuple[str, tuple[bytes, ...], str | None, int]:
        """What must be equal for two answers to be the same."""
        return self.text, self.tokens, self.finish_reason, self.completion_tokens


@dataclass
class Client:
    """Of one gateway. Safe to use from several threads."""

    url: str
    timeout: float = PATIENCE
    _http: httpx.Client = field(init=False)
    _model: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_connections=256, max_keepalive_connections=64)
        self._http = httpx.Client(base_url=self.url, timeout=self.timeout, limits=limits, trust_env=False)

    @property
    def model(self) -> str:
        if self._model is None:
            self._model = str(self._get("/v1/models").json()["data"][0]["id"])
        return self._model

    def chat(
        self,
        content: str | list[dict[str, str]],
        *,
        stream: bool = False,
        during: Callable[[int], None] = lambda chunks: None,
        **options: Any,
    ) -> Answer:
        """One chat completion of a user's message (or of whole messages).

        While a stream is read, `during` is called after each chunk with tokens, with the number of those so far.
        """
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        body = {"model": self.model, "messages": messages, **options}
        path = "/v1/chat/completions"
        return self._stream(path, body, during) if stream else self._whole(path, body)

    def complete(self, prompt: str | list[int], *, stream: bool = False, **options: Any) -> Answer:
        """One text completion."""
        body = {"model": self.model, "prompt": prompt, **options}
        return (
            self._stream("/v1/completions", body, lambda chunks: None)
            if stream
            else self._whole("/v1/completions", body)
        )

    def tokenize(self, **body: Any) -> list[int]:
        """The ids of a `prompt`, or of `messages` in the model's chat template. Raises httpx.HTTPStatusError."""
        answer = self._http.post("/tokenize", json={"model": self.model, **body})
        found: list[int] = answer.raise_for_status().json()["tokens"]
        return found

    def metrics(self, url: str | None = None) -> dict[str, float]:
        """The samples of a /metrics page, labels as Prometheus writes them: 'name{a="b"}' → value."""
        page = self._get(f"{url or self.url}/metrics").text
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _get(self, path: str) -> httpx.Response:
        answer = self._http.get(path)
        if answer.status_code != 200:
            raise ApiFailure(answer.status_code, _json(answer))
        return answer

    def _whole(self, path: str, body: Mapping[str, Any]) -> Answer:
        began = time.perf_counter()
        answer = self._http.post(path, json=body)
        seconds = time.perf_counter() - began
        if answer.status_code != 200:
            raise ApiFailure(answer.status_code, _json(answer))
        found = answer.json()
        choice = found["choices"][0]
        return Answer(
            text=choice["text"] if "text" in choice else choice["message"]["content"],
            tokens=_tokens(choice),
            finish_reason=choice["finish_reason"],
            completion_tokens=found["usage"]["completion_tokens"],
            prompt_tokens=found["usage"]["prompt_tokens"],
            seconds=seconds,
            speculation=(found.get("metrics") or {}).get("speculative_decoding"),
            tandem=found.get("tandem"),
        )

    def _stream(self, path: str, body: Mapping[str, Any], during: Callable[[int], None]) -> Answer:
        body = {**body, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        read = _Reading()
        began = time.perf_counter()
        with self._http.stream("POST", path, json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                raise ApiFailure(answer.status_code, _json(answer))
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    chunks = len(read.arrivals)
                    read.event(line.removeprefix("data: "), time.perf_counter() - began)
                    if len(read.arrivals) > chunks:
                        during(len(read.arrivals))
        return read.answer(time.perf_counter() - began)


class _Reading:
    """A stream of events, as far as it has been read."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.tokens: list[bytes] = []
        self.arrivals: list[float] = []
        self.chunk_tokens: list[int] = []
        self.rounds: list[Mapping[str, Any]] = []
        self.finish_reason: str | None = None
        self.last: dict[str, Any] = {}
        self.usage: dict[str, Any] = {"completion_tokens": 0, "prompt_tokens": 0}
        self.done = False

    def event(self, data: str, seconds: float) -> None:
        if data == "[DONE]":
            self.done = True
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise ApiFailure(200, chunk, "".join(self.text))
        self.last |= {key: chunk[key] for key in ("metrics", "tandem") if chunk.get(key)}
        self.usage = chunk.get("usage") or self.usage
        self.rounds += [one for one in (chunk.get("tandem") or {}).get("rounds") or () if "timings" in one]
        for choice in chunk["choices"]:
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            text = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            self.text.append(text)
            self.tokens += _tokens(choice)
            if self.usage["completion_tokens"] > (self.chunk_tokens[-1] if self.chunk_tokens else 0):
                self.arrivals.append(seconds)
                self.chunk_tokens.append(self.usage["completion_tokens"])

    def answer(self, seconds: float) -> Answer:
        if not self.done:
            raise ApiFailure(200, "the stream ended without [DONE]", "".join(self.text))
        return Answer(
            text="".join(self.text),
            tokens=tuple(self.tokens),
            finish_reason=self.finish_reason,
            completion_tokens=self.usage["completion_tokens"],
            prompt_tokens=self.usage["prompt_tokens"],
            seconds=seconds,
            speculation=(self.last.get("metrics") or {}).get("speculative_decoding"),
            tandem=self.last.get("tandem"),
            arrivals=tuple(self.arrivals),
            chunk_tokens=tuple(self.chunk_tokens),
            rounds=tuple(self.rounds),
        )


def _tokens(choice: Mapping[str, Any]) -> tuple[bytes, ...]:
    logprobs = choice.get("logprobs") or {}
    if "content" in logprobs:
        return tuple(bytes(entry["bytes"] or entry["token"].encode()) for entry in logprobs["content"] or ())
    return tuple(token.encode() for token in logprobs.get("tokens", ()))


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return answer.text[:500]
