"""Gateway and workers as far as the doctor looks at them: canned answers over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from protocol.messages import DraftRequest, VerifyRequest
from tandem.doctor import PROMPTS

WORDS = sorted({word for prompt in PROMPTS.values() for word, _ in Whitespace().pre_tokenize_str(prompt)})

NO_TIME: dict[str, float] = dict.fromkeys(("queue_ms", "forward_ms", "sample_ms", "total_ms"), 0.0)


def tokenizer_json(words: list[str]) -> str:
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = Whitespace()
    return str(tokenizer.to_str())


def model(role: str, words: list[str], **changes: Any) -> dict[str, Any]:
    capabilities = {
        "rounds": ["gateway"],
        "strategies": ["deterministic"],
        "max_candidates": 1,
        "max_draft_tokens": 8,
        "sampling": [],
        "grammar_types": [],
    }
    return {
        "role": role,
        "id": f"the-{role}",
        "engine": "fake",
        "dtype": "float32",
        "device": "cpu",
        "vocabulary": {"fingerprint": "/".join(words)[:64], "size": len(words), "logits_size": len(words)},
        "special_token_ids": [],
        "stop_token_ids": [],
        "context_length": 1024,
        "max_sessions": 8,
        "fingerprint": "f",
        "capabilities": capabilities,
        "step_seconds": [],
    } | changes


def tokenizer_info(words: list[str]) -> dict[str, Any]:
    return {
        "model_id": "m",
        "tokenizer_json": tokenizer_json(words),
        "chat_template": None,
        "bos_token": None,
        "eos_token": None,
        "special_tokens": {},
        "stop_token_ids": [],
        "vocabulary": {"fingerprint": "x", "size": len(words), "logits_size": len(words)},
        "context_length": 1024,
    }


def drafted(body: dict[str, Any], milliseconds: float) -> dict[str, Any]:
    request = DraftRequest.model_validate_json(json.dumps(body))
    return {
        "session_id": request.session_id,
        "round": request.round,
        "candidates": [{"token_ids": request.context.token_ids[: request.draft_tokens]}],
        "source": "model",
        "cached_tokens": 0,
        "timings": {
            "queue_ms": 0.0,
            "forward_ms": 0.0,
            "sample_ms": 0.0,
            "total_ms": milliseconds * request.draft_tokens,
        },
    }


def verified(body: dict[str, Any], milliseconds: float) -> dict[str, Any]:
    request = VerifyRequest.model_validate_json(json.dumps(body))
    rows = 1 + sum(len(candidate.token_ids) for candidate in request.candidates)
    timings = {
        "queue_ms": 0.0,
        "forward_ms": milliseconds,
        "sample_ms": 0.0,
        "total_ms": 0.0,
        "rows": rows,
        "sessions": 1,
    }
    return {
        "session_id": request.session_id,
        "round": request.round,
        "candidate": None,
        "num_drafted": rows - 1,
        "num_accepted": 0,
        "acceptance_mask": [],
        "token_ids": [0],
        "stop_reason": None,
        "lossless": True,
        "cached_tokens": 0,
        "timings": timings,
    }


def chunks(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """24 tokens; with speculation in 8 rounds, of which all have γ = 5 drafts and accept 2."""
    for piece in ("a ", "b"):
        yield {"choices": [{"index": 0, "delta": {"content": piece}}]}
    speculates = body["speculative"].get("enabled", True)
    numbers = {
        "num_accepted_draft_tokens": 16 if speculates else 0,
        "num_spec_steps": 8 if speculates else 0,
        "acceptance_histogram": [0, 0, 8, 0, 0, 0] if speculates else [0] * 6,
        "num_spec_tokens": body["speculative"].get("draft_tokens", 5),
    }
    yield {"choices": [], "usage": {"completion_tokens": 24}, "metrics": {"speculative_decoding": numbers}}


class Fake:
    """One fake service; `answers` maps paths to what a GET answers (text as it is, anything else as JSON; or what
    returns that), or of other paths to status and body of a POST's answer, and may be changed at any time."""

    def __init__(self, answers: dict[str, Any], milliseconds: float = 1.0) -> None:
        self.answers: dict[str, Any] = {"/health": {"status": "ok"}, "/ready": {"detail": "ready"}} | answers
        self.milliseconds = milliseconds
        self.tokens_seen: set[str] = set()
        self.vocabularies_seen: set[str | None] = set()
        self.forgotten: list[str] = []
        self.salts: list[str | None] = []
        """Of the answers that were generated."""


@contextmanager
def serving(fake: Fake) -> Iterator[str]:
    """The fake's address while it serves."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: two would wait for each other's acknowledgement

        def do_GET(self) -> None:
            answer = fake.answers.get(self.path)
            if callable(answer):
                answer = answer()
            status = 503 if self.path == "/ready" and not fake.answers.get("ready", True) else 200
            content = answer if isinstance(answer, str) else json.dumps(answer)
            self._send(404 if answer is None else status, content.encode())

        def do_DELETE(self) -> None:
            fake.forgotten.append(self.path)
            self._send(200, b"{}")

        def do_POST(self) -> None:
            fake.tokens_seen.add(self.headers.get("Authorization", ""))
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/v1/draft":
                fake.vocabularies_seen.add(body.get("vocabulary"))
                self._send(200, json.dumps(drafted(body, fake.milliseconds)).encode())
            elif self.path == "/v1/verify":
                self._send(200, json.dumps(verified(body, fake.milliseconds)).encode())
            elif self.path in fake.answers:
                status, answer = fake.answers[self.path]
                self._send(status, json.dumps(answer).encode())
            else:
                fake.salts.append(body.get("cache_salt"))
                lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks(body)]
                self._send(200, "".join([*lines, "data: [DONE]\n\n"]).encode())

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
