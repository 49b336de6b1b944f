"""The target worker's HTTP app."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from config.workers import TargetWorkerConfig
from engines.errors import ModelError
from protocol.errors import EngineFailure, WireError
from protocol.messages import (
    GenerateRequest,
    GrammarCheckRequest,
    GrammarCheckResponse,
    VerifyBatchItem,
    VerifyBatchRequest,
    VerifyBatchResponse,
    VerifyRequest,
    VerifyResponse,
)
from protocol.worker_info import TokenizerInfo
from serving.disconnects import until_client_leaves
from target_worker.metrics import TargetMetrics
from target_worker.service import TargetService
from target_worker.start import LoadTarget, load_service
from worker.answers import LinesResponse, json_response
from worker.batch import parse_batch, serve_batch
from worker.http import Shell, parse
from worker.lifecycle import Lifecycle, stop_process
from worker.routes import add_common_routes

logger = logging.getLogger(__name__)


def create_app(
    config: TargetWorkerConfig,
    load: LoadTarget | None = None,
    on_failure: Callable[[str], None] = stop_process,
    on_loaded: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The app; its model is loaded once it runs. `load(progress)` replaces loading the configured one."""
    metrics = TargetMetrics()

    def load_target(progress: Callable[[str], None]) -> TargetService:
        return load_service(config, metrics, progress, lifecycle.fail, load)

    lifecycle = Lifecycle(load_target, on_failure, config.drain_timeout_ms / 1000, ModelError, on_loaded)
    shell = Shell("Tandem target worker", config, metrics, lifecycle.lifespan)

    async def verify(request: VerifyRequest) -> VerifyResponse:
        return await lifecycle.get().verify(request)

    async def verify_batch(request: Request) -> Response:
        items = parse_batch(VerifyBatchRequest, VerifyRequest, await shell.read_body(request))
        answers = await until_client_leaves(request.receive, serve_batch(items, verify, VerifyBatchItem))
        return json_response(VerifyBatchResponse(items=answers))

    async def check_grammar(request: GrammarCheckRequest) -> GrammarCheckResponse:
        return await lifecycle.get().check_grammar(request)

    async def generate(request: Request) -> Response:
        message = parse(GenerateRequest, await shell.read_body(request))
        rounds = lifecycle.get().generate(message)
        # What fails before the first token is still answered with its own status.
        first = await until_client_leaves(request.receive, anext(rounds))
        return LinesResponse(_lines(first, rounds), config.stall_timeout_ms / 1000)

    shell.post("/v1/verify", VerifyRequest, VerifyResponse, verify)
    shell.route("/v1/verify/batch", VerifyBatchRequest, VerifyBatchResponse, verify_batch)
    shell.route("/v1/generate", GenerateRequest, VerifyResponse, generate, "application/x-ndjson")
    shell.post("/v1/grammar/check", GrammarCheckRequest, GrammarCheckResponse, check_grammar)
    shell.get("/v1/tokenizer", TokenizerInfo, lambda: lifecycle.get().engine.model.tokenizer)
    add_common_routes(shell, lifecycle, metrics)
    return shell.app


async def _lines(
    first: VerifyResponse, rounds: AsyncGenerator[VerifyResponse, None]
) -> AsyncGenerator[BaseModel, None]:
    """The rounds, and if they break off the reason as the last line."""
    try:
        yield first
        async for response in rounds:
            yield response
    except WireError as error:
        yield error.body()
    except Exception:
        logger.exception("a stream failed")
        yield EngineFailure("the worker failed to go on").body()
    finally:
        await rounds.aclose()
