"""The draft worker's HTTP app."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fastapi import FastAPI, Request, Response

from basics.names import LOOKUP
from config.workers import DraftWorkerConfig
from draft_worker.engine import DraftEngine
from draft_worker.grammars import SessionGrammars, load_vocabulary
from draft_worker.metrics import DraftMetrics, memory_counters, memory_gauges
from draft_worker.service import DraftService
from engines.errors import ModelError
from engines.table import adapter
from protocol.messages import (
    DraftBatchItem,
    DraftBatchRequest,
    DraftBatchResponse,
    DraftRequest,
    DraftResponse,
    RememberRequest,
    RememberResponse,
    TokenizerInfo,
)
from serving.disconnects import until_client_leaves
from worker.answers import json_response
from worker.batch import parse_batch, serve_batch
from worker.errors import NotFound
from worker.http import Shell
from worker.lifecycle import Lifecycle, stop_process
from worker.metrics import session_counters, session_gauges
from worker.routes import add_common_routes

LoadDrafter = Callable[[Callable[[str], None]], DraftEngine]


def create_app(
    config: DraftWorkerConfig,
    load: LoadDrafter | None = None,
    on_failure: Callable[[str], None] = stop_process,
    on_loaded: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The app; its model, if it drafts with one, is loaded once it runs. `load(progress)` replaces loading it."""
    metrics = DraftMetrics()

    def load_service(progress: Callable[[str], None]) -> DraftService:
        engine: DraftEngine | None = None
        if load is not None:
            engine = load(progress)
        elif config.model != LOOKUP:
            engine = _load(config, metrics, progress, lifecycle.fail)
        service = DraftService(engine, config, metrics, _grammars(config) if engine is None else None)
        gauges, counters = session_gauges(service.sessions), session_counters(service.sessions)
        if engine is not None:
            gauges += engine.gauges()
            counters += engine.counters()
        if (memory := service.memory) is not None:
            gauges = [*gauges, *memory_gauges(memory)]
            counters = [*counters, *memory_counters(memory)]
        metrics.loaded(service.info, gauges, counters)
        return service

    lifecycle = Lifecycle(load_service, on_failure, config.drain_timeout_ms / 1000, ModelError, on_loaded)
    shell = Shell("Tandem draft worker", config, metrics, lifecycle.lifespan)

    async def draft(request: DraftRequest) -> DraftResponse:
        return await lifecycle.get().draft(request)

    async def draft_batch(request: Request) -> Response:
        items = parse_batch(DraftBatchRequest, DraftRequest, await shell.read_body(request))
        answers = await until_client_leaves(request.receive, serve_batch(items, draft, DraftBatchItem))
        return json_response(DraftBatchResponse(items=answers))

    async def remember(request: RememberRequest) -> RememberResponse:
        return await lifecycle.get().remember(request)

    def tokenizer() -> TokenizerInfo:
        engine = lifecycle.get().engine
        if engine is None:
            raise NotFound("this worker drafts without a model and has no tokenizer")
        return engine.tokenizer

    shell.post("/v1/draft", DraftRequest, DraftResponse, draft)
    shell.route("/v1/draft/batch", DraftBatchRequest, DraftBatchResponse, draft_batch)
    shell.post("/v1/remember", RememberRequest, RememberResponse, remember)
    shell.get("/v1/tokenizer", TokenizerInfo, tokenizer, also=(404,))
    add_common_routes(shell, lifecycle, metrics)
    return shell.app


def _grammars(config: DraftWorkerConfig) -> SessionGrammars | None:
    return SessionGrammars(partial(load_vocabulary, config.grammar_model)) if config.grammar_model is not None else None


def _load(
    config: DraftWorkerConfig,
    metrics: DraftMetrics,
    progress: Callable[[str], None],
    on_death: Callable[[str], None],
) -> DraftEngine:
    engine: DraftEngine = adapter("draft_worker", config).load_drafter(config, metrics, progress, on_death)
    return engine
