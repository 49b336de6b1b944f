"""Both workers' apps over fake runners, and messages for them."""

from __future__ import annotations

import asyncio

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Literal

import httpx
from fastapi import FastAPI
from torch import Tensor

from config.workers import TargetWorkerConfig, WorkerConfig
from engines.torch.engine import TorchEngine
from engines.torch.loop import EngineLoop, PassReport
from engines.torch.slots import SlotCache
from protocol.hashing import PrefixHashes
from protocol.messages import (
    MAX_DRAFT_TOKENS,
    MAX_LOGPROBS,
    Capabilities,
    ModelInfo,
    Sampling,
    TokenizerInfo,
    Vocabulary,
)
from target_worker.app import create_app as create_target_app
from target_worker.strategies import STRATEGIES
from target_worker.torch_engine import TorchTarget
from tests.fake_runner import VOCABULARY, FakeRunner, hash_logits

STOP = 31
_VOCABULARY = Vocabulary(fingerprint="f" * 32, size=VOCABULARY, logits_size=VOCABULARY)


def fake_engine(
    runner: FakeRunner,
    role: Literal["draft", "target"],
    config: WorkerConfig,
    on_pass: Callable[[PassReport], None] = lambda report: None,
) -> TorchEngine:
    slots = SlotCache(runner.num_slots, runner.copy, config.slot_hold_ms / 1000)
    loop = EngineLoop(runner, slots, config.max_queue, config.prefill_chunk_tokens, on_pass)
    loop.start()
    info = ModelInfo(
        role=role,
        id="fake",
        engine="torch",
        dtype="float32",
        device="cpu",
        vocabulary=_VOCABULARY,
        special_token_ids=[STOP],
        stop_token_ids=[STOP],
        context_length=runner.slot_length,
        max_sessions=runner.num_slots,
        fingerprint="fake",
        capabilities=Capabilities(
            rounds=["gateway"],
            strategies=list(STRATEGIES),
            max_candidates=8,
            max_draft_tokens=MAX_DRAFT_TOKENS,
            max_logprobs=MAX_LOGPROBS,
            sampling=list(Sampling.model_fields),
            grammar_types=[],
            q=role == "draft",
            prediction=role == "draft",
        ),
        step_seconds=[],
    )
    tokenizer = TokenizerInfo(
        model_id="fake",
        tokenizer_json="{}",
        chat_template=None,
        bos_token=None,
        eos_token=None,
        special_tokens={},
        stop_token_ids=[STOP],
        vocabulary=_VOCABULARY,
        context_length=runner.slot_length,
    )
    return TorchEngine(loop, info, tokenizer)


class Target:
    """A running target app over a fake runner. `post` answers (status, JSON)."""

    def __init__(self, app: FastAPI, runner: FakeRunner, client: httpx.AsyncClient) -> None:
        self.app = app
        self.runner = runner
        self.client = client

    async def post(self, path: str, message: dict[str, Any]) -> tuple[int, Any]:
        response = await self.client.post(path, json=message)
        return response.status_code, response.json()

    async def verify(self, **fields: Any) -> Any:
        status, body = await self.post("/v1/verify", request(**fields))
        assert status == 200, body
        return body

    async def generate(self, **fields: Any) -> list[Any]:
        response = await self.client.post("/v1/generate", json=request(**fields))
        assert response.status_code == 200, response.text
        return [httpx.Response(200, content=line).json() for line in response.text.splitlines()]


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app, once it is ready."""
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://worker", timeout=20) as client:
            while (await client.get("/ready")).status_code != 200:
                pass
            yield client


@asynccontextmanager
async def target(runner: FakeRunner | None = None, **settings: Any) -> AsyncIterator[Target]:
    config = TargetWorkerConfig(**{"slot_hold_ms": 0, **settings})
    runner = runner or FakeRunner(config.slots)

    def load(progress: Callable[[str], None]) -> TorchTarget:
        return TorchTarget(fake_engine(runner, "target", config), config.stall_timeout_ms / 1000, config.verbose)

    app = create_target_app(config, load)
    async with running(app) as client:
        yield Target(app, runner, client)


def request(
    ids: Sequence[int], held: int = 0, salt: str | None = None, sampling: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """A message for the context `ids`, whose first `held` ids are not sent again."""
    hashes = PrefixHashes(salt)
    hashes.extend(ids)
    return {
        "session_id": "s",
        "round": 0,
        "context": {"start": held, "token_ids": list(ids[held:]), "prefix_hash": hashes.at(held)},
        "num_prompt_tokens": 0,
        "max_tokens": 16,
        "sampling": {"seed": 7, **(sampling or {})},
        "cache_salt": salt,
        **({} if "draft_tokens" in fields else {"candidates": []} if "candidates" not in fields else {}),
        **fields,
    }


def blended(share: float) -> Callable[[Sequence[int]], Tensor]:
    """Logits that agree with hash_logits but for a share of something else: a draft model."""
    return lambda ids: (1 - share) * hash_logits(ids) + share * hash_logits(ids, b"draft")


def async_test(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine function as a test, for half a minute at most."""

    @wraps(test)
    def run(*args: Any, **fields: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **fields), 30))

    return run
