"""The endpoints that both workers have."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Response
from prometheus_client import CONTENT_TYPE_LATEST

from protocol.errors import ErrorBody
from protocol.worker_info import Health, ModelInfo, Ready
from worker.answers import json_response
from worker.http import Shell
from worker.lifecycle import Lifecycle
from worker.metrics import WorkerMetrics

SessionPath = Annotated[str, Path(description="a session's id; an unknown one is not an error")]


def add_common_routes(shell: Shell, lifecycle: Lifecycle[Any], metrics: WorkerMetrics) -> None:
    """/health, /ready, /metrics, /v1/model and the deletion of sessions; `app.state.drain` for who runs the server."""
    app = shell.app
    app.state.drain = lifecycle.drain

    @app.head("/ready", response_model=None, include_in_schema=False)
    @app.get("/ready", response_model=None, responses={200: {"model": Ready}, 503: {"model": Ready}})
    async def ready() -> Response:
        state = lifecycle.ready()
        return json_response(state, 200 if state.ready else 503)

    @app.head("/metrics", response_model=None, include_in_schema=False)
    @app.get("/metrics", response_model=None, responses={200: {"content": {"text/plain": {}}}})
    async def page() -> Response:
        return Response(metrics.page(), media_type=CONTENT_TYPE_LATEST)

    @app.delete(
        "/v1/sessions/{session_id}",
        response_model=None,
        status_code=204,
        responses={status: {"model": ErrorBody} for status in (401, 422, 503)},
    )
    async def delete_session(session_id: SessionPath) -> Response:
        await lifecycle.get().delete(session_id)
        return Response(status_code=204)

    shell.get("/health", Health, Health)
    shell.get("/v1/model", ModelInfo, lambda: lifecycle.get().info)
