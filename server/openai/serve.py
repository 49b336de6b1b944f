"""Runs a plan and sends its answer, in one piece or as a stream of events."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from typing import Protocol

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Scope

from server.errors import ApiError, InternalError
from server.gateway import Gateway
from server.http.record import note_error, record_of
from server.http.sse import EventStream, EventWriter, event
from server.openai.answers import ErrorAnswer
from server.openai.generation import Generation
from server.openai.plan import Plan
from server.text.choice import Delta
from serving.disconnects import ClientGone, until_client_leaves

logger = logging.getLogger(__name__)


class NamedEvent(BaseModel):
    """A chunk whose event carries its type as a name."""

    type: str


class Chunks(Protocol):
    """Turns deltas into the chunks of one endpoint's stream, each an event. `mark` is what comes after the last."""

    @property
    def mark(self) -> bytes: ...

    def opening(self) -> list[BaseModel]:
        """Before the first delta."""
        ...

    def delta(self, delta: Delta, last: bool) -> list[BaseModel]:
        """`last`: every choice has finished with this one."""
        ...

    def closing(self) -> list[BaseModel]:
        """After the last delta."""
        ...

    def failure(self, error: ApiError) -> list[BaseModel]:
        """In place of what would have come, once something was sent."""
        ...


class CompletionStream:
    """How streams of completions end, chat or not."""

    mark = event(b"[DONE]")

    def failure(self, error: ApiError) -> list[BaseModel]:
        return [ErrorAnswer.model_validate(error.body())]


def arrival(request: Request) -> float:
    """When the request came, time.monotonic(): the outermost middleware noted it."""
    record = record_of(request.scope)
    return time.monotonic() if record is None else record.arrived


async def answer(
    gateway: Gateway,
    request: Request,
    plan: Plan,
    chunks: Callable[[], Chunks],
    whole: Callable[[list[list[Delta]]], BaseModel],
) -> Response:
    """`whole` makes the answer in one piece from each choice's deltas."""
    record = record_of(request.scope)
    if record is not None:
        record.answer_id = plan.id
    run = Generation(
        gateway.backend,
        plan.choices,
        metrics=gateway.metrics,
        background=gateway.background,
        arrived=arrival(request),
        record=record,
        timeout=gateway.config.request_timeout_seconds,
    )
    if plan.stream:
        return EventStream(
            lambda writer: _stream(gateway, request.scope, run, chunks(), writer), gateway.config.write_timeout_seconds
        )

    async def collect() -> list[list[Delta]]:
        deltas: list[list[Delta]] = [[] for _ in plan.choices]
        async with run:
            async for delta in run.deltas():
                if delta is not None:
                    deltas[delta.index].append(delta)
        return deltas

    deltas = await until_client_leaves(request.receive, collect())
    return Response(whole(deltas).model_dump_json(exclude_unset=True, by_alias=True), media_type="application/json")


async def _stream(gateway: Gateway, scope: Scope, run: Generation, chunks: Chunks, writer: EventWriter) -> None:
    try:
        await _events(gateway, run, chunks, writer)
    except ApiError as error:
        if not writer.started:
            raise
        note_error(scope, gateway.metrics, error)
        await writer.events(*_spelled(chunks.failure(error)))
    except ClientGone:
        raise
    except Exception as error:
        if not writer.started:
            raise
        where = "".join(traceback.format_tb(error.__traceback__))
        logger.error("streaming failed: %s\n%s", type(error).__name__, where)
        fault = InternalError("streaming failed because of a fault in the server")
        note_error(scope, gateway.metrics, fault)
        await writer.events(*_spelled(chunks.failure(fault)))
    await writer.events(chunks.mark)
    await writer.end()


async def _events(gateway: Gateway, run: Generation, chunks: Chunks, writer: EventWriter) -> None:
    opened = False
    unfinished = len(run.choices)
    async with run:
        async for delta in run.deltas(gateway.config.keep_alive_seconds):
            if delta is None:
                await writer.comment(b"keep-alive")
                continue
            models = [] if opened else chunks.opening()
            opened = True
            unfinished -= delta.finish_reason is not None
            models += chunks.delta(delta, unfinished == 0)
            if unfinished == 0:
                models += chunks.closing()
            await writer.events(*_spelled(models))


def _spelled(models: list[BaseModel]) -> list[bytes]:
    return [
        event(
            model.model_dump_json(exclude_unset=True, by_alias=True).encode(),
            model.type if isinstance(model, NamedEvent) else None,
        )
        for model in models
    ]
