"""Workers that speak the wire over a fake model, and misbehave on demand."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn

from basics.names import STRATEGIES
from protocol.hashing import PrefixHashes
from protocol.messages import DraftRequest, GenerateRequest, RememberRequest, SequenceRequest, VerifyRequest
from protocol.prepared import PreparedRequest
from protocol.worker_info import LearnRequest
from testing.fakes.model import STOP, VOCABULARY, draft_token, probability, target_token, top_token
from testing.wire import pause

Answer = dict[str, Any]


class Cut(Exception):
    """Send half an answer, then drop the connection."""


class Reply(Exception):
    def __init__(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers or {}


def error(status: int, code: str, headers: dict[str, str] | None = None, field: str | None = None) -> Reply:
    body = json.dumps({"error": {"code": code, "message": f"{code} on purpose", "field": field}})
    return Reply(status, body.encode(), headers)


class FakeWorker:
    """`faults` are consumed one a call: an exception to raise, a coroutine function to await first, a function that
    changes the answer, or None. `always` is used when there are none left. `seconds` is how long a call takes."""

    def __init__(
        self, role: str, *, wrong: float = 0.0, vocabulary: str | None = "v1", token: str | None = None
    ) -> None:
        self.role = role
        self.wrong = wrong
        self.vocabulary = vocabulary
        self.tokens = [f"t{i}" for i in range(VOCABULARY)]
        self.fingerprint = "weights-1"
        self.id = f"fake-{role}"
        self.token = token
        self.loaded = True
        self.translates = False
        self.refuses_to_learn = False
        self.learned: list[dict[str, Any]] = []
        self.lessons = 0
        self.context_length = 4096
        self.seconds = 0.0
        self.stop_at: int | None = None
        self.drives: list[str] = ["gateway"]
        self.sampled_rounds = False
        self.strategies: list[str] = list(STRATEGIES)
        self.max_candidates = 8
        self.sends_q = True
        self.ahead = False
        """Whether it looks ahead and tells what it has prepared, or takes verifications that follow another."""
        self.extends = False
        """Whether it has prepared as much as is wanted of every draft, and sends it."""
        self.chooses = self.chooses_ahead = False
        """Whether it has `auto`, which copies the first token of each draft, and tells what that would draft."""
        self.tells: Callable[[Answer], Answer] = lambda one: one
        self.told: list[Answer] = []
        self.holds = 4
        """How many of these it holds; it takes no drafts after what is assumed if it holds one."""
        self.answered: dict[str, int] = {}
        self.unfollowed: set[tuple[str, int]] = set()
        self.drafted_last: dict[str, list[int]] = {}
        self.looks_ahead = 0
        self.faults: deque[Any] = deque()
        self.always: Any = None
        self.delete_faults: deque[Reply] = deque()
        self.sessions: dict[str, list[int]] = {}
        self.rounds: dict[str, int] = {}
        self.calls: list[tuple[str, Any]] = []
        self.remembered: list[RememberRequest] = []
        self.deleted: set[str] = set()
        self.cancelled = 0
        self.running = 0
        self.model_calls = 0
        self.port = 0
        self._server: uvicorn.Server | None = None
        self.tls: dict[str, Any] = {}

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        config = uvicorn.Config(
            self.app,
            host="127.0.0.1",
            port=self.port,
            log_level="critical",
            access_log=False,
            interface="asgi3",
            lifespan="off",
            **self.tls,
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup()
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    @property
    def up(self) -> bool:
        return self._server is not None

    async def kill(self) -> None:
        """Abruptly: connections are cut, sessions are gone."""
        assert self._server is not None
        for server in self._server.servers:
            server.close()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        self._server = None
        self.sessions.clear()
        self.rounds.clear()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.running += 1
        work = asyncio.ensure_future(self.serve(scope, body, send))
        gone = asyncio.ensure_future(self.disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.cancelled += 1
        finally:
            self.running -= 1
            for task in (work, gone):
                task.cancel()
            results = await asyncio.gather(work, gone, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]

    async def disconnected(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def serve(self, scope: Any, body: bytes, send: Any) -> None:
        path, method = scope["path"], scope["method"]
        headers = dict(scope["headers"])
        try:
            if self.token is not None and headers.get(b"authorization") != f"Bearer {self.token}".encode():
                raise error(401, "unauthorized")
            if method == "DELETE":
                if self.delete_faults:
                    raise self.delete_faults.popleft()
                session = path.rsplit("/", 1)[1]
                self.deleted.add(session)
                self.sessions.pop(session, None)
                await send({"type": "http.response.start", "status": 204, "headers": []})
                await send({"type": "http.response.body", "body": b""})
            elif path == "/ready":
                status, detail = (200, "") if self.loaded else (503, "the model is being loaded")
                await reply(send, status, json.dumps({"ready": self.loaded, "detail": detail}).encode())
            elif path == "/v1/model":
                self.model_calls += 1
                await reply(send, 200, json.dumps(self.model()).encode())
            elif path == "/v1/tokenizer":
                await reply(send, 200, json.dumps(self.tokenizer()).encode())
            elif path == "/v1/vocabulary":
                await reply(send, 200, json.dumps(self.learn(LearnRequest.model_validate_json(body))).encode())
            elif path == "/v1/remember":
                self.remembered.append(RememberRequest.model_validate_json(body))
                await reply(send, 200, b'{"remembered": true}')
            elif path == "/v1/prepared":
                await reply(send, 200, json.dumps(self.prepared(PreparedRequest.model_validate_json(body))).encode())
            elif path == "/v1/generate":
                await self.generate(GenerateRequest.model_validate_json(body), send)
            else:
                await self.call(path, body, send)
        except Reply as answer:
            await reply(send, answer.status, answer.body, answer.headers)

    async def call(self, path: str, body: bytes, send: Any) -> None:
        kind: type[DraftRequest] | type[VerifyRequest] = DraftRequest if path == "/v1/draft" else VerifyRequest
        request = kind.model_validate_json(body)
        self.calls.append((path, request))
        fault = self.faults.popleft() if self.faults else self.always
        change: Callable[[Answer], Any] | None = None
        cut = isinstance(fault, Cut)
        if isinstance(fault, Exception) and not cut:
            raise fault
        if asyncio.iscoroutinefunction(fault):
            await fault()
        elif callable(fault):
            change = fault
        if self.seconds and not (isinstance(request, VerifyRequest) and request.follows is not None):
            await asyncio.sleep(self.seconds)
        if isinstance(request, DraftRequest):
            answer = self.draft(request)
        elif request.follows is not None:
            answer = await self.follow(request)
        else:
            answer = self.verify(request)
        changed = change(answer) if change is not None else answer
        data = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
        await reply(send, 200, data, cut=cut)

    def learn(self, request: LearnRequest) -> Answer:
        self.lessons += 1
        if self.refuses_to_learn:
            raise error(400, "unsupported", field="tokenizer")
        name = request.tokenizer.vocabulary.fingerprint
        translation = {"vocabulary": name, "way": "shared_text", "q": False, "shared": 7, "coverage": 0.5}
        self.learned.append(translation)
        return translation

    def read(self, request: SequenceRequest) -> list[int]:
        session = request.session_id or ""
        held = self.sessions.get(session, [])
        context = request.context
        if request.round < self.rounds.get(session, -1):
            raise error(409, "stale_round")
        hashes = PrefixHashes(request.cache_salt)
        hashes.extend(held[: context.start])
        if len(held) < context.start or hashes.at(context.start) != context.prefix_hash:
            raise error(409, "context_mismatch")
        self.rounds[session] = request.round
        ids = held[: context.start] + context.token_ids
        self.sessions[session] = list(ids)
        return ids

    def emit(self, ids: list[int]) -> int:
        return STOP if len(ids) == self.stop_at else target_token(ids)

    def top(self, ids: list[int]) -> int:
        return STOP if len(ids) == self.stop_at else top_token(ids)

    def draft(self, request: DraftRequest) -> Answer:
        ids = self.read(request)
        candidates = []
        length = max(request.draft_tokens, request.prepared_tokens if self.extends else 0)
        length = len(request.verifying) if request.verifying is not None else length
        for index in range(request.num_candidates if request.draft_tokens else 0):
            chain = list(ids)
            for _ in range(min(length, self.context_length - len(ids))):
                chain.append((draft_token(chain, self.wrong) + index) % (VOCABULARY - 1))
            drafted = chain[len(ids) :]
            if index == 0:
                self.drafted_last[request.session_id or ""] = drafted
                self.looks_ahead = request.lookahead_tokens
            q = [{"token_ids": [token], "logprobs": [0.0]} for token in drafted] if request.want_q else None
            candidates.append({"token_ids": drafted, "logprobs": None, "q": q})
        return {
            "session_id": request.session_id,
            "round": request.round,
            "candidates": candidates,
            "source": "cache" if length > request.draft_tokens else "model",
            "parts": [{"source": "cache", "tokens": length}] if length > request.draft_tokens else [],
            "planned": length if request.prepared_tokens or request.draft_model == "auto" else None,
            "cached_tokens": request.context.start,
            "timings": {"queue_ms": 0.0, "forward_ms": 0.0, "sample_ms": 0.0, "total_ms": 1000 * self.seconds},
        }

    def prepared(self, request: PreparedRequest) -> Answer:
        """For the last draft: all of it accepted, and nothing; the token after that guessed as a drafter would."""
        ids, drafted = self.sessions[request.session_id], self.drafted_last.get(request.session_id, [])
        length = 3 if self.chooses else self.looks_ahead
        found = []
        for accepted in {len(drafted), 0}:
            chain = [*ids, *drafted[:accepted]]
            chain.append(target_token(chain))
            came = chain[len(ids) :]
            for _ in range(length):
                chain.append(draft_token(chain, self.wrong))
            candidate = {"token_ids": chain[len(ids) + len(came) :]}
            one: Answer = {"alternative": {"token_ids": came, "candidate": candidate}, "whole": True}
            if self.chooses:
                parts = [{"source": "lookup", "tokens": 1}, {"source": "cache", "tokens": length - 1}]
                one = self.tells({**one, "parts": parts, "planned": length})
            found.append(one)
        self.told += found
        return {"session_id": request.session_id, "round": request.round, "prepared": found}

    async def follow(self, request: VerifyRequest) -> Answer:
        session = request.session_id or ""
        hashes = PrefixHashes(request.cache_salt)
        while self.answered.get(session, -1) < (request.follows or 0):
            await pause()
            if (session, request.follows) in self.unfollowed:
                break
        hashes.extend(self.sessions.get(session, [])[: request.context.start])
        came = self.sessions.get(session, [])[request.context.start :]
        alternative = next((one for one in request.alternatives if one.token_ids == came), None)
        asked = request.following(alternative) if alternative is not None else None
        held = len(hashes) == request.context.start and hashes.at(len(hashes)) == request.context.prefix_hash
        if asked is None or self.rounds[session] != request.follows or not held:
            self.unfollowed.add((session, request.round))
            raise error(409, "not_followed", field="alternatives")
        self.rounds[session] = request.round
        await asyncio.sleep(self.seconds)
        answer = self.verify(asked, list(self.sessions[session]))
        return {**answer, "candidate": [one.token_ids for one in request.alternatives].index(came)}

    def verify(self, request: VerifyRequest, context: list[int] | None = None) -> Answer:
        ids = context if context is not None else self.read(request)
        own = self.top if request.strategy == "greedy" else self.emit
        least = request.acceptance_threshold
        best, accepted = None, -1
        for index, candidate in enumerate(request.candidates):
            chain, count = list(ids), 0
            for token in candidate.token_ids:
                likely = request.strategy == "threshold" and own(chain) != STOP and probability(chain, token) >= least
                if own(chain) != token and not likely:
                    break
                chain.append(token)
                count += 1
            if count > accepted:
                best, accepted = index, count
        accepted = max(accepted, 0)
        emitted = list(request.candidates[best].token_ids[:accepted]) if best is not None else []
        emitted.append(own(ids + emitted))
        answer = self.round(request, ids, emitted, best, accepted, request.max_tokens)
        return {**answer, "lossless": request.strategy not in ("threshold", "greedy")}

    def round(
        self, request: SequenceRequest, ids: list[int], emitted: list[int], best: int | None, accepted: int, most: int
    ) -> Answer:
        stop = None
        if STOP in emitted:
            emitted, stop = emitted[: emitted.index(STOP) + 1], "stop_token"
        if len(emitted) > most:
            emitted = emitted[:most]
        if stop is None and len(emitted) == most:
            stop = "length"
        accepted = min(accepted, len(emitted))
        drafted = request.candidates[best].token_ids if best is not None and isinstance(request, VerifyRequest) else []
        self.sessions[request.session_id or ""] = ids + emitted
        self.answered[request.session_id or ""] = request.round
        return {
            "session_id": request.session_id,
            "round": request.round,
            "candidate": best,
            "num_drafted": len(drafted),
            "num_accepted": accepted,
            "acceptance_mask": [i < accepted for i in range(len(drafted))],
            "token_ids": emitted,
            "logprobs": None,
            "stop_reason": stop,
            "stop_token_id": STOP if stop == "stop_token" else None,
            "lossless": True,
            "cached_tokens": request.context.start,
            "timings": {
                "queue_ms": 0.0,
                "forward_ms": 1000 * self.seconds,
                "sample_ms": 0.0,
                "total_ms": 1000 * self.seconds,
                "rows": 1 + len(drafted),
                "sessions": 1,
            },
        }

    async def generate(self, request: GenerateRequest, send: Any) -> None:
        self.calls.append(("/v1/generate", request))
        fault = self.faults.popleft() if self.faults else self.always
        if isinstance(fault, Exception) and not isinstance(fault, Cut):
            raise fault
        if asyncio.iscoroutinefunction(fault):
            await fault()
        change = fault if callable(fault) and not asyncio.iscoroutinefunction(fault) else None
        headers = [(b"content-type", b"application/x-ndjson")]
        async for answer in self.stream(request):
            if headers:
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                headers = []
            changed = change(answer) if change is not None else answer
            data = (changed if isinstance(changed, bytes) else json.dumps(changed).encode()) + b"\n"
            if isinstance(fault, Cut):
                await send({"type": "http.response.body", "body": data[: len(data) // 2], "more_body": True})
                raise RuntimeError("cut on purpose")
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def stream(self, request: GenerateRequest) -> AsyncIterator[Answer]:
        ids = self.read(request)
        remaining = request.max_tokens
        while remaining:
            if self.seconds:
                await asyncio.sleep(self.seconds)
            drafted = self.drafted(request)
            emitted = [self.emit(ids)]
            for _ in range(drafted if len(ids) > len(request.context.token_ids) else 0):
                emitted.append(self.emit(ids + emitted))
            answer = self.round(request, ids, emitted, None, len(emitted) - 1, remaining)
            if len(emitted) > 1:  # like a target that drafts for itself: one wrong token after the accepted ones
                answer["num_drafted"] = drafted + 1
            ids = ids + answer["token_ids"]
            remaining -= len(answer["token_ids"])
            yield answer
            if answer["stop_reason"]:
                return

    def drafted(self, request: GenerateRequest) -> int:
        """How many drafted tokens a round of a stream gets right."""
        asked = request.speculation
        return asked.draft_tokens - 1 if asked is not None and asked.enabled and asked.draft_tokens else 0

    def model(self) -> Answer:
        vocabulary = {"fingerprint": self.vocabulary, "size": len(self.tokens), "logits_size": VOCABULARY}
        return {
            "protocol": 1,
            "role": self.role,
            "id": self.id,
            "engine": "fake",
            "dtype": None,
            "device": "cpu",
            "vocabulary": vocabulary if self.vocabulary is not None else None,
            "special_token_ids": [STOP],
            "stop_token_ids": [STOP],
            "context_length": self.context_length,
            "max_sessions": 8,
            "fingerprint": self.fingerprint,
            "translations": self.learned,
            "capabilities": {
                "translates": self.translates,
                "rounds": self.drives,
                "target_rounds_sampled": self.sampled_rounds,
                "strategies": self.strategies,
                "max_candidates": self.max_candidates,
                "max_draft_tokens": 32,
                "sampling": [],
                "grammar_types": [],
                "q": self.sends_q,
                "lookahead": self.ahead and self.role == "draft",
                "prepared": self.ahead and self.role == "draft",
                "prepared_tokens": self.extends,
                "auto": self.chooses,
                "chooses_ahead": self.chooses_ahead,
                "assumes": self.ahead and self.role == "draft" and self.holds > 1,
                "follows": self.ahead and self.role == "target",
                "holds": self.holds,
            },
            "step_seconds": [{"rows": 1, "seconds": max(self.seconds, 0.001)}],
        }

    def tokenizer(self) -> Answer:
        tokenizer = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {}, "unk_token": "t0"}}
        tokenizer["model"]["vocab"] = {token: i for i, token in enumerate(self.tokens)}  # type: ignore[index]
        return {
            "model_id": self.id,
            "tokenizer_json": json.dumps(tokenizer),
            "chat_template": None,
            "bos_token": None,
            "eos_token": None,
            "special_tokens": {},
            "stop_token_ids": [STOP],
            "vocabulary": self.model()["vocabulary"],
            "context_length": self.context_length,
        }


async def reply(send: Any, status: int, body: bytes, headers: dict[str, str] | None = None, cut: bool = False) -> None:
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    fields += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    if cut:
        await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
        raise RuntimeError("cut on purpose")
    await send({"type": "http.response.body", "body": body})


def self_signed(folder: Any) -> tuple[str, str]:
    """Paths of a key and a certificate for 127.0.0.1, made with the openssl command."""
    import subprocess

    key, certificate = str(folder / "key.pem"), str(folder / "cert.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    ssl.create_default_context(cafile=certificate)
    return key, certificate
