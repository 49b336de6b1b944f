"""What `tandem doctor` asks gateway and workers, one bounded call at a time."""

from __future__ import annotations

import json
import re
import statistics
import time
import uuid
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import httpx
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ValidationError

from basics.names import OnOffAuto
from protocol.hashing import PrefixHashes
from protocol.messages import Candidate, Context, DraftRequest, DraftResponse, Sampling, VerifyRequest, VerifyResponse
from protocol.worker_info import ModelInfo, TokenizerInfo

M = TypeVar("M", bound=BaseModel)
ROUND_TRIPS = 20
REPEATS = 5


class Unreachable(Exception):
    """A call without a usable answer; the message has the reason."""


@dataclass(frozen=True, slots=True)
class MeasuredAnswer:
    """One streamed answer. `decode_seconds` runs from the first piece of text to the last."""

    text: str
    completion_tokens: int
    decode_seconds: float
    speculative: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Told:
    """What a service's /metrics says of itself; None where it does not say."""

    worker: str | None = None
    """Its role, if it is a worker."""
    lookahead: OnOffAuto | None = None
    verifications_in_flight: int | None = None
    looked_ahead: float = 0.0
    """Rounds after lookahead, so far."""
    hidden_seconds: float = 0.0


class ProbedService:
    """The gateway or a worker, over one kept-alive connection."""

    def __init__(self, name: str, url: str, token: str | None, timeout: float, verify: str | bool = True) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.name = name
        self.url = url.rstrip("/").removesuffix("/v1")
        self._timeout = timeout
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, verify=verify, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def get(self, path: str) -> httpx.Response:
        """Raises Unreachable for anything but an answer under 400."""
        return self._call("GET", path, None)

    def ready(self) -> tuple[bool, str]:
        try:
            answer = self._client.get("/ready")
            return answer.status_code == 200, str(answer.json().get("detail", ""))
        except (ValueError, AttributeError):
            raise Unreachable(f"{self.name} at {self.url}: what answers there is no Tandem") from None
        except httpx.HTTPError as error:
            raise Unreachable(f"{self.name} at {self.url}: {_words(error)}") from None

    def told(self) -> Told:
        """Nothing of what cannot be read: gateways before there was lookahead say none of it."""
        found: dict[str, Any] = {"looked_ahead": 0.0}
        try:
            page = self.get("/metrics").text
            for family in text_string_to_metric_families(page):
                for sample in family.samples:
                    if sample.name == "tandem_lookahead_info":
                        found["lookahead"] = sample.labels["lookahead"]
                        found["verifications_in_flight"] = int(sample.labels["verifications_in_flight"])
                    elif sample.name == "tandem_lookahead_rounds_total":
                        found["looked_ahead"] += sample.value
                    elif sample.name == "tandem_lookahead_hidden_seconds_total":
                        found["hidden_seconds"] = sample.value
        except (Unreachable, ValueError, LookupError):
            return Told()
        return Told(worker_of(page), **found)

    def first_worker(self, role: Literal["target", "draft"]) -> str | None:
        """The address of the gateway's first worker of a role, as its /ready names it; None if it names none."""
        try:
            _, detail = self.ready()
        except Unreachable:
            return None
        found = re.search(rf"\b{role} (https?://\S+): ", detail)
        return found[1] if found else None

    def round_trip_ms(self) -> float:
        """The median of several GETs of /health, connection kept alive."""
        times = []
        for _ in range(ROUND_TRIPS):
            began = time.perf_counter()
            self.get("/health")
            times.append((time.perf_counter() - began) * 1e3)
        return statistics.median(times)

    def model(self) -> ModelInfo:
        return self._parsed(ModelInfo, self.get("/v1/model"))

    def tokenizer(self) -> TokenizerInfo:
        return self._parsed(TokenizerInfo, self.get("/v1/tokenizer"))

    def draft_ms(self, token_ids: list[int], draft_tokens: int, vocabulary: str | None = None) -> tuple[float, int]:
        """The worker's own time for a draft after a context it has read already (median), and the draft's length.

        `vocabulary`: whose ids they are, if not the worker's own.
        """
        calls = self._rounds(
            "/v1/draft",
            DraftResponse,
            lambda common: DraftRequest(**common, draft_tokens=draft_tokens, vocabulary=vocabulary),
            token_ids,
        )
        return statistics.median(call.timings.total_ms for call in calls), len(calls[-1].candidates[0].token_ids)

    def verify_ms(self, token_ids: list[int], draft_tokens: int) -> float:
        """The target's pass and draws over γ draft tokens after a context it has read already (median)."""
        drafted = [Candidate(token_ids=token_ids[:draft_tokens])] if draft_tokens else []
        calls = self._rounds(
            "/v1/verify", VerifyResponse, lambda common: VerifyRequest(**common, candidates=drafted), token_ids
        )
        return statistics.median(call.timings.forward_ms + call.timings.sample_ms for call in calls)

    def models(self) -> str:
        """The first model that the gateway serves."""
        try:
            return str(self.get("/v1/models").json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise Unreachable(f"{self.name} at {self.url}: /v1/models answers no model") from None

    def generate(self, body: dict[str, Any]) -> MeasuredAnswer:
        """A streamed chat completion, timed. Raises Unreachable if it fails or takes too long."""
        text, tokens, speculative = "", 0, {}
        first = last = 0.0
        deadline = time.monotonic() + self._timeout
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    answer.read()
                    raise Unreachable(f"{self.name} at {self.url}: {_refusal(answer)}")
                for line in answer.iter_lines():
                    if time.monotonic() > deadline:
                        raise Unreachable(f"{self.name} at {self.url}: no whole answer in {self._timeout:g} s")
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    chunk = json.loads(line.removeprefix("data: "))
                    if "error" in chunk:
                        raise Unreachable(f"{self.name} at {self.url}: {chunk['error'].get('message')}")
                    piece = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
                    if piece:
                        last = time.perf_counter()
                        first = first or last
                        text += piece
                    if chunk.get("usage"):
                        tokens = chunk["usage"]["completion_tokens"]
                        speculative = (chunk.get("metrics") or {}).get("speculative_decoding", {})
        except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise Unreachable(f"{self.name} at {self.url}: {_words(error)}") from None
        return MeasuredAnswer(text, tokens, last - first, speculative)

    def _rounds(self, path: str, reply: type[M], request: Any, token_ids: list[int]) -> list[M]:
        """The same context asked several times in one session of its own, freed afterwards; the first call reads it."""
        session = f"doctor-{uuid.uuid4().hex}"
        calls = []
        try:
            for number in range(REPEATS + 1):
                common = {
                    "session_id": session,
                    "round": number,
                    "context": Context(start=0, token_ids=token_ids, prefix_hash=PrefixHashes().at(0)),
                    "num_prompt_tokens": len(token_ids),
                    "max_tokens": 64,
                    "sampling": Sampling(temperature=0.0, seed=0),
                    "deadline_ms": max(1, round(self._timeout * 1e3)),
                }
                calls.append(self._parsed(reply, self._call("POST", path, request(common))))
        finally:
            self._forget(session)
        return calls[1:]

    def _forget(self, session: str) -> None:
        try:
            self._client.delete(f"/v1/sessions/{session}")
        except httpx.HTTPError:
            return  # a session is a cache: the worker evicts it by itself

    def _call(self, method: str, path: str, message: BaseModel | None) -> httpx.Response:
        content = message.model_dump_json(exclude_none=True) if message is not None else None
        headers = {"Content-Type": "application/json"} if content else {}
        try:
            answer = self._client.request(method, path, content=content, headers=headers)
        except httpx.HTTPError as error:
            raise Unreachable(f"{self.name} at {self.url}: {path}: {_words(error)}") from None
        if answer.status_code >= 400:
            raise Unreachable(f"{self.name} at {self.url}: {path}: {_refusal(answer)}")
        return answer

    def _parsed(self, model: type[M], answer: httpx.Response) -> M:
        try:
            return model.model_validate_json(answer.content)
        except ValidationError as error:
            first = error.errors()[0]
            where = f"{self.name} at {self.url}: {answer.request.url.path}"
            wrong = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise Unreachable(f"{where} does not speak Tandem's wire: {wrong}") from None


def worker_of(page: str) -> str | None:
    """The role of the worker whose /metrics this is; None if it is no worker's."""
    named = re.search(r"^tandem_(target|draft)_build_info\b", page, re.MULTILINE)
    return named[1] if named is not None else None


def _words(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    if isinstance(error, httpx.ConnectError):
        return "cannot be reached (is it running?)"
    if isinstance(error, httpx.UnsupportedProtocol):
        return "no address such as http://127.0.0.1:8000"
    return f"{type(error).__name__}: {error}"[:200]


def _refusal(answer: httpx.Response) -> str:
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = answer.text[:200]
    return f"HTTP {answer.status_code}: {message}"
