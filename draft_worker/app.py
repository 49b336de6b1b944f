"""The draft worker's HTTP app."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastapi import FastAPI, Request, Response

from config.workers import DraftWorkerConfig
from draft_worker.metrics import DraftMetrics
from draft_worker.service import DraftService
from draft_worker.start import LoadDrafter, load_service
from engines.errors import ModelError
from protocol.messages import (
    MAX_TOKENIZER_BYTES,
    DraftBatchItem,
    DraftBatchRequest,
    DraftBatchResponse,
    DraftRequest,
    DraftResponse,
    RememberRequest,
    RememberResponse,
)
from protocol.prepared import PreparedRequest, PreparedResponse
from protocol.worker_info import LearnRequest, TokenizerInfo, Translation
from serving.disconnects import until_client_leaves
from worker.answers import json_response
from worker.batch import parse_batch, serve_batch
from worker.errors import NotFound
from worker.http import Shell, parse
from worker.lifecycle import Lifecycle, stop_process
from worker.routes import add_common_routes


def create_app(
    config: DraftWorkerConfig,
    load: LoadDrafter | None = None,
    on_failure: Callable[[str], None] = stop_process,
    on_loaded: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The app; its model, if it drafts with one, is loaded once it runs. `load(progress)` replaces loading it."""
    metrics = DraftMetrics()

    def load_drafter(progress: Callable[[str], None]) -> DraftService:
        return load_service(config, metrics, progress, lifecycle.fail, load)

    lifecycle = Lifecycle(load_drafter, on_failure, config.drain_timeout_ms / 1000, ModelError, on_loaded)
    shell = Shell("Tandem draft worker", config, metrics, lifecycle.lifespan)

    async def draft(request: DraftRequest) -> DraftResponse:
        return await lifecycle.get().draft(request)

    async def draft_batch(request: Request) -> Response:
        items = parse_batch(DraftBatchRequest, DraftRequest, await shell.read_body(request))
        answers = await until_client_leaves(request.receive, serve_batch(items, draft, DraftBatchItem))
        return json_response(DraftBatchResponse(items=answers))

    async def remember(request: RememberRequest) -> RememberResponse:
        return await lifecycle.get().remember(request)

    async def prepared(request: PreparedRequest) -> PreparedResponse:
        return await lifecycle.get().prepared(request)

    learning = asyncio.Lock()

    async def learn(request: Request) -> Response:
        service = lifecycle.get()
        async with learning:  # one at a time: a tokenizer may have many megabytes
            message = parse(LearnRequest, await shell.read_body(request, MAX_TOKENIZER_BYTES))
            return json_response(await until_client_leaves(request.receive, service.learn(message)))

    def tokenizer() -> TokenizerInfo:
        engine = lifecycle.get().engine
        if engine is None:
            raise NotFound("this worker drafts without a model and has no tokenizer")
        return engine.model.tokenizer

    shell.post("/v1/draft", DraftRequest, DraftResponse, draft)
    shell.route("/v1/draft/batch", DraftBatchRequest, DraftBatchResponse, draft_batch)
    shell.post("/v1/prepared", PreparedRequest, PreparedResponse, prepared)
    shell.post("/v1/remember", RememberRequest, RememberResponse, remember)
    shell.route("/v1/vocabulary", LearnRequest, Translation, learn)
    shell.get("/v1/tokenizer", TokenizerInfo, tokenizer, also=(404,))
    add_common_routes(shell, lifecycle, metrics)
    return shell.app
