"""A whole Tandem in this process: gateway and both workers, each over a socket of its own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI, OpenAI

from basics.names import LOOKUP
from config.gateway import GatewayConfig
from config.workers import DraftWorkerConfig, TargetWorkerConfig
from draft_worker.app import create_app as create_draft_app
from server.app import create_app
from server.fleet_backend import Fleet
from serving.connection import HttpConnection
from serving.runner import KEEP_ALIVE_SECONDS
from target_worker.app import create_app as create_target_app
from testing.patience import PATIENCE


@dataclass
class Stack:
    """`url` is the gateway's. `model` is the served model's id."""

    url: str
    target_url: str
    draft_url: str
    model: str

    @cached_property
    def sdk(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=PATIENCE)

    def async_sdk(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=PATIENCE)

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=PATIENCE)

    def chat(self, **changes: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "Hi"}]
        return self.post("/v1/chat/completions", {"model": self.model, "messages": messages, **changes})


@contextmanager
def running_stack(
    target: Path,
    draft: Path | None = None,
    exact: bool = True,
    pools: Mapping[str, Mapping[str, Any]] | None = None,
    **settings: Any,
) -> Iterator[Stack]:
    """`draft` None: lookup. `exact`: batch-invariant, so that texts can be compared. `settings` are the gateway's.

    `pools`: further draft workers by the name of their pool, each with its settings.
    """
    common: dict[str, Any] = {"batch_invariant": exact, "device": "cpu", "slots": 16}
    with ExitStack() as servers:
        target_url = servers.enter_context(_served(create_target_app(TargetWorkerConfig(model=str(target), **common))))
        model = LOOKUP if draft is None else str(draft)
        drafter = DraftWorkerConfig(model=model, grammar_model=str(target), **common)
        draft_url = servers.enter_context(_served(create_draft_app(drafter)))
        named = {}
        for name, own in (pools or {}).items():
            worker = create_draft_app(DraftWorkerConfig(**{**common, **own}))
            named[name] = [servers.enter_context(_served(worker))]
        url = servers.enter_context(_gateway(target_url, draft_url, {"draft_pools": named, **settings}))
        yield Stack(url, target_url, draft_url, "tiny")


@contextmanager
def gateway_before(workers: Stack, **settings: Any) -> Iterator[Stack]:
    """Another gateway before the same workers."""
    with _gateway(workers.target_url, workers.draft_url, settings) as url:
        yield Stack(url, workers.target_url, workers.draft_url, "tiny")


@contextmanager
def _gateway(target_url: str, draft_url: str, settings: dict[str, Any]) -> Iterator[str]:
    config = GatewayConfig(
        **{
            "target_urls": [target_url],
            "draft_urls": [draft_url],
            "served_model_name": ["tiny"],
            "probe_interval_seconds": 0.2,
            "draft_timeout_seconds": PATIENCE,
            **settings,
        }
    )
    with _served(create_app(config, Fleet(config))) as url:
        _until_ready(url, 2 + len(config.draft_pools))
        yield url


@contextmanager
def _served(app: FastAPI) -> Iterator[str]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    config = uvicorn.Config(
        app,
        http=HttpConnection,
        log_level="warning",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


def _until_ready(url: str, workers: int) -> None:
    """The target is there, and the draft workers too."""
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        answer = httpx.get(f"{url}/ready", timeout=PATIENCE)
        if answer.status_code == 200 and answer.text.count(": ready") == workers:
            return
        time.sleep(0.05)
    raise TimeoutError(f"not ready within {PATIENCE} s: {answer.text}")
