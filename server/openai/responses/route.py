"""POST /v1/responses."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from server.errors import NotSupported
from server.gateway import Gateway, gateway_of
from server.openai.body import body_of
from server.openai.chat_job import plan_chat
from server.openai.docs import documented
from server.openai.origin import origin_of
from server.openai.plan import served
from server.openai.responses.answers import ResponseObject
from server.openai.responses.convert import LOGPROBS, as_chat, own_words
from server.openai.responses.respond import ResponseEvents
from server.openai.responses.schema import ResponsesRequest
from server.openai.serve import answer
from server.text.choice import Delta

router = APIRouter()


@router.post("/v1/responses", **documented(ResponsesRequest, ResponseObject, streams=True))
async def responses(
    request: Request,
    gateway: Annotated[Gateway, Depends(gateway_of)],
    body: Annotated[ResponsesRequest, Depends(body_of(ResponsesRequest))],
) -> Response:
    """Answers a conversation, whole or as server-sent events. Nothing is stored: every call brings the whole of it."""
    with own_words(body):
        origin = origin_of(request)
        model = served(gateway, body.model)
        plan, reading = await plan_chat(gateway, as_chat(body), model, prefix="resp_", origin=origin)
        if plan.choices[0].request.logprobs is not None and reading.thought is not None:
            raise NotSupported(f"'{LOGPROBS}' is not supported by a model that thinks aloud", param="include")

        def whole(deltas: list[list[Delta]]) -> ResponseObject:
            events = ResponseEvents(body, plan, reading)
            for delta in deltas[0]:
                events.delta(delta, delta.finish_reason is not None)
            return events.finished()

        return await answer(gateway, request, plan, lambda: ResponseEvents(body, plan, reading), whole)
