"""The draft worker that vLLM's proposer asks, over real sockets and threads of its own: the proposer blocks, and so
may a test's answer. Workers for the gateway, on its event loop, are testing/fakes/worker.py."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from protocol.messages import DraftBatchRequest
from testing.fakes.vllm_engine import following

INFO = {"protocol": 1, "role": "draft", "id": "fake", "vocabulary": None, "stop_token_ids": [31]}
Behaviour = Callable[[DraftBatchRequest], "bytes | None"]


def good(batch: DraftBatchRequest) -> bytes:
    """The answer of a worker that always drafts right."""
    items = []
    for item in batch.items:
        ids = item.context.token_ids or [0]
        tokens: list[int] = []
        for _ in range(item.draft_tokens):
            tokens.append(following(ids + tokens))
        items.append({"response": {"candidates": [{"token_ids": tokens}]} if tokens else {"candidates": []}})
    return json.dumps({"items": items}).encode()


def errors(status: int) -> Behaviour:
    """Answers every item with this error."""
    return lambda batch: json.dumps({"items": [{"error": {"status": status}} for _ in batch.items]}).encode()


class BatchDrafter:
    """`behaviour` makes the body of each answer to /v1/draft/batch; None: the connection is cut instead."""

    def __init__(self) -> None:
        self.behaviour: Behaviour = good
        self.info: Any = INFO
        self.batches: list[DraftBatchRequest] = []
        self.deleted: list[str] = []
        self.tokens: list[str | None] = []
        self.connections = 0
        self._lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                with fake._lock:
                    fake.connections += 1

            def finish(self) -> None:
                with fake._lock:
                    fake.connections -= 1
                super().finish()

            def do_GET(self) -> None:
                fake.tokens.append(self.headers["Authorization"])
                self._answer(json.dumps(fake.info).encode())

            def do_DELETE(self) -> None:
                fake.deleted.append(self.path.rsplit("/", 1)[1])
                self._answer(b"")

            def do_POST(self) -> None:
                batch = DraftBatchRequest.model_validate_json(self.rfile.read(int(self.headers["Content-Length"])))
                fake.batches.append(batch)
                body = fake.behaviour(batch)
                if body is None:
                    self.close_connection = True
                else:
                    self._answer(body)

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *args: Any) -> None:
                pass  # callers that do not wait for their answer are the point here

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def drafts(self) -> list[DraftBatchRequest]:
        """The calls that asked for drafts rather than for reading."""
        return [batch for batch in self.batches if any(item.draft_tokens for item in batch.items)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
