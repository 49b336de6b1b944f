"""Both workers' apps over fake runners, and messages for them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from torch import Tensor

from basics.names import MAX_DRAFT_TOKENS
from config.workers import DraftWorkerConfig, TargetWorkerConfig, WorkerConfig
from draft_worker.app import create_app as create_draft_app
from draft_worker.runtime.engine import LoopDrafter
from engines.runtime.engine import LoopModel
from engines.runtime.loop import EngineLoop
from engines.runtime.slots import SlotCache
from protocol.messages import MAX_LOGPROBS, Sampling
from protocol.worker_info import Capabilities, ModelInfo, StepTime, TokenizerInfo, Vocabulary
from target_worker.app import create_app as create_target_app
from target_worker.runtime.engine import LoopTarget
from target_worker.strategies import STRATEGIES
from testing.fakes.runner import VOCABULARY, FakeRunner, hash_logits
from testing.patience import PATIENCE
from testing.wire import pause, request

STOP = 31
_VOCABULARY = Vocabulary(fingerprint="f" * 32, size=VOCABULARY, logits_size=VOCABULARY)


def fake_engine(
    runner: FakeRunner,
    role: Literal["draft", "target"],
    config: WorkerConfig,
    tokenizer: TokenizerInfo | None = None,
    pass_seconds: float | None = None,
) -> LoopModel:
    """`pass_seconds`: what it says that a pass of one token takes; None: it says nothing."""
    slots = SlotCache(runner.num_slots, runner.copy, config.slot_hold_ms / 1000)
    loop = EngineLoop(runner, slots, config.max_queue, config.prefill_chunk_tokens)
    loop.start()
    info = ModelInfo(
        role=role,
        id="fake",
        engine="torch",
        dtype="float32",
        device="cpu",
        vocabulary=tokenizer.vocabulary if tokenizer is not None else _VOCABULARY,
        special_token_ids=[STOP],
        stop_token_ids=[STOP],
        context_length=runner.slot_length,
        max_sessions=runner.num_slots,
        fingerprint="fake",
        capabilities=Capabilities(
            rounds=["gateway"],
            strategies=list(STRATEGIES),
            strategy_facts=[strategy.facts(name) for name, strategy in STRATEGIES.items()],
            max_candidates=8,
            max_draft_tokens=MAX_DRAFT_TOKENS,
            max_logprobs=MAX_LOGPROBS,
            sampling=list(Sampling.model_fields),
            grammar_types=[],
            q=role == "draft",
            prediction=role == "draft",
            lookahead=role == "draft",
            prepared=role == "draft",
            follows=role == "target",
        ),
        step_seconds=[StepTime(rows=1, seconds=pass_seconds)] if pass_seconds is not None else [],
    )
    tokenizer = tokenizer or TokenizerInfo(
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
    return LoopModel(loop=loop, info=info, tokenizer=tokenizer)


class Worker:
    """A running app over a fake runner (None: lookup alone). `post` answers (status, JSON)."""

    def __init__(self, client: httpx.AsyncClient, runner: FakeRunner) -> None:
        self.client = client
        self.runner = runner

    async def post(self, path: str, message: dict[str, Any]) -> tuple[int, Any]:
        response = await self.client.post(path, json=message)
        return response.status_code, response.json()

    async def metric(self, name: str) -> float:
        """A metric's value, all its labels together."""
        page = (await self.client.get("/metrics")).text
        samples = [s for family in text_string_to_metric_families(page) for s in family.samples if s.name == name]
        assert samples, name
        return sum(sample.value for sample in samples)


class Target(Worker):
    async def verify(self, **fields: Any) -> Any:
        status, body = await self.post("/v1/verify", request(**{"candidates": [], **fields}))
        assert status == 200, body
        return body

    async def generate(self, **fields: Any) -> list[Any]:
        response = await self.client.post("/v1/generate", json=request(**fields))
        assert response.status_code == 200, response.text
        return [json.loads(line) for line in response.text.splitlines()]


class Drafter(Worker):
    async def draft(self, **fields: Any) -> Any:
        status, body = await self.post("/v1/draft", request(**{"draft_tokens": 4, **fields}))
        assert status == 200, body
        return body


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app, once it is ready."""
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://worker", timeout=PATIENCE) as client:
            while (await client.get("/ready")).status_code != 200:
                await pause()
            yield client


@asynccontextmanager
async def target(runner: FakeRunner | None = None, **settings: Any) -> AsyncIterator[Target]:
    config = TargetWorkerConfig(**{"slot_hold_ms": 0, **settings})
    runner = runner or FakeRunner(config.slots)

    def load(progress: Callable[[str], None]) -> LoopTarget:
        engine = fake_engine(runner, "target", config)
        return LoopTarget(engine, config.stall_timeout_ms / 1000, config.verbose, (config.gather_ms or 0) / 1000)

    async with running(create_target_app(config, load)) as client:
        yield Target(client, runner)


@asynccontextmanager
async def drafter(
    runner: FakeRunner | None = None,
    lookup: bool = False,
    tokenizer: TokenizerInfo | None = None,
    pass_seconds: float | None = None,
    **settings: Any,
) -> AsyncIterator[Drafter]:
    config = DraftWorkerConfig(**{"slot_hold_ms": 0, **settings})
    runner = runner or FakeRunner(config.slots)

    def load(progress: Callable[[str], None]) -> LoopDrafter:
        return LoopDrafter(fake_engine(runner, "draft", config, tokenizer, pass_seconds), config.q_top_k)

    async with running(create_draft_app(config, None if lookup else load)) as client:
        yield Drafter(client, runner)


def blended(share: float) -> Callable[[Sequence[int]], Tensor]:
    """Logits that agree with hash_logits but for a share of something else: a draft model."""
    return lambda ids: (1 - share) * hash_logits(ids) + share * hash_logits(ids, b"draft")
