"""What operators ask: /health, /ready, /metrics."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from protocol.worker_info import Health, Ready
from server.errors import NoModelYet
from server.gateway import Gateway, gateway_of

router = APIRouter()
_USUAL_DRAFT_TOKENS = 5

Served = Annotated[Gateway, Depends(gateway_of)]


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health() -> Health:
    """The process is alive."""
    return Health()


@router.head("/ready", include_in_schema=False)
@router.get("/ready", responses={503: {"model": Ready, "description": "Not ready"}})
async def ready(gateway: Served, response: Response) -> Ready:
    """Requests can be answered: a target is there, and its tokenizer has been read."""
    is_ready, detail = gateway.backend.ready()
    if is_ready:
        try:
            await gateway.texts.get(gateway.backend.model().tokenizer)
        except NoModelYet as error:
            is_ready, detail = False, error.message
    if not is_ready:
        response.status_code = 503
    return Ready(ready=is_ready, detail=detail)


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def prometheus(gateway: Served) -> Response:
    """Metrics in Prometheus' text format."""
    usual = gateway.config.draft_tokens or _USUAL_DRAFT_TOKENS
    return Response(gateway.metrics.text(gateway.backend.pairs(), usual), media_type=CONTENT_TYPE_LATEST)
