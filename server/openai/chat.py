"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel
from starlette.responses import Response

from server.backend import ServedModel
from server.choice import Delta
from server.errors import InvalidRequest, NotSupported
from server.gateway import Gateway, gateway_of
from server.openai import params
from server.openai.answers import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
)
from server.openai.body import body_of
from server.openai.chat_schema import ChatCompletionRequest
from server.openai.docs import documented
from server.openai.logprobs import chat_logprobs
from server.openai.plan import Job, Plan, make_plan, served
from server.openai.prompt import chat_prompt
from server.openai.serve import answer
from server.text.model import TextModel

router = APIRouter()


@router.post("/v1/chat/completions", **documented(ChatCompletionRequest, ChatCompletion, streams=True))
async def chat_completions(
    request: Request,
    gateway: Annotated[Gateway, Depends(gateway_of)],
    body: Annotated[ChatCompletionRequest, Depends(body_of(ChatCompletionRequest))],
) -> Response:
    """Answers a conversation, whole or as server-sent events."""
    model = served(gateway, body.model)
    text = await gateway.texts.get(model.tokenizer)
    _check_tools(body)
    variables = _template_variables(body, text)
    job = await gateway.texts.run(lambda: _job(gateway, body, model, text, variables))
    traceparent = request.headers.get("traceparent")
    plan = make_plan(gateway, body, kind="chatcmpl", model=model, text=text, jobs=[job], traceparent=traceparent)
    return await answer(gateway, request, plan, ChatChunks, whole)


def _check_tools(body: ChatCompletionRequest) -> None:
    if body.tools and body.tool_choice != "none":
        raise params.not_yet("tools", "this server does not read tool calls from the model's text")
    if body.tool_choice not in (None, "none", "auto"):
        raise InvalidRequest("'tool_choice' needs 'tools'", param="tool_choice")


def _template_variables(body: ChatCompletionRequest, text: TextModel) -> dict[str, Any]:
    variables: dict[str, Any] = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        if text.template is None or not text.template.mentions("reasoning_effort"):
            raise NotSupported("'reasoning_effort' is not supported by this model", param="reasoning_effort")
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    return variables


def _job(
    gateway: Gateway, body: ChatCompletionRequest, model: ServedModel, text: TextModel, variables: dict[str, Any]
) -> Job:
    prompt = chat_prompt(
        text,
        body.messages,
        gateway.config,
        variables=variables,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
    )
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true", param="top_logprobs")
    requested = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    return Job(
        prompt=prompt,
        max_tokens=params.output_tokens(
            requested, gateway.config.default_max_tokens, len(prompt), model.target, gateway.config, "messages"
        ),
        logprobs=params.logprobs((body.top_logprobs or 0) if body.logprobs else None, model.target, "logprobs"),
        grammar=params.grammar(body.response_format, body.structured_outputs, len(prompt), model.target),
        prediction=_prediction(body, model, text),
        # A continued message goes on from its own text: spaces at the seam are those of the whole.
        prefix=prompt if body.continue_final_message else (),
    )


def _prediction(body: ChatCompletionRequest, model: ServedModel, text: TextModel) -> list[int] | None:
    """Ignored while no draft worker is up: it could change the speed alone."""
    if body.prediction is None:
        return None
    drafter = model.drafter
    if drafter.capabilities is not None and not drafter.capabilities.prediction:
        raise params.not_yet("prediction", "the draft worker does not draft from predictions")
    content = body.prediction.content
    joined = content if isinstance(content, str) else "".join(part.text for part in content)
    return text.tokenizer.encode(joined, add_special_tokens=False)


def _logprobs(plan: Plan, deltas: list[Delta]) -> ChatLogprobs | None:
    if plan.choices[0].request.logprobs is None:
        return None
    token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
    entries = [entry for delta in deltas for entry in delta.logprobs or ()]
    return chat_logprobs(plan.text.tokenizer, token_ids, entries)


def whole(plan: Plan, deltas: list[list[Delta]]) -> BaseModel:
    choices = [
        ChatChoice(
            index=index,
            message=ChatMessage(role="assistant", content="".join(delta.text for delta in own), refusal=None),
            logprobs=_logprobs(plan, own),
            finish_reason=own[-1].finish_reason or "stop",
            stop_reason=own[-1].stop_reason,
        )
        for index, own in enumerate(deltas)
    ]
    return ChatCompletion(
        id=plan.id,
        object="chat.completion",
        created=plan.created,
        model=plan.name,
        choices=choices,
        usage=plan.usage(),
        system_fingerprint=plan.fingerprint,
        metrics=plan.speculative_metrics(),
        tandem=plan.tandem(),
    )


class ChatChunks:
    """The stream: a chunk with the role for each choice, deltas, a chunk with the finish reason, the usage."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def opening(self) -> list[BaseModel]:
        return [
            self._chunk([self._choice(choice.index, ChatDelta(role="assistant", content=""))])
            for choice in self._plan.choices
        ]

    def delta(self, delta: Delta, last: bool) -> list[BaseModel]:
        chunks: list[BaseModel] = []
        if delta.text or delta.logprobs:
            content = self._choice(delta.index, ChatDelta(content=delta.text), _logprobs(self._plan, [delta]))
            chunks.append(self._chunk([content]))
        if delta.finish_reason is not None:
            final = self._choice(delta.index, ChatDelta())
            final.finish_reason, final.stop_reason = delta.finish_reason, delta.stop_reason
            chunk = self._chunk([final])
            if last and not self._plan.include_usage:
                self._conclude(chunk)
            chunks.append(chunk)
        return chunks

    def closing(self) -> list[BaseModel]:
        if not self._plan.include_usage:
            return []
        chunk = self._chunk([])
        chunk.usage = self._plan.usage()
        self._conclude(chunk)
        return [chunk]

    def _conclude(self, chunk: ChatCompletionChunk) -> None:
        chunk.metrics = self._plan.speculative_metrics()
        chunk.tandem = self._plan.tandem()

    def _choice(self, index: int, delta: ChatDelta, logprobs: ChatLogprobs | None = None) -> ChatChunkChoice:
        return ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=None)

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
        plan = self._plan
        chunk = ChatCompletionChunk(
            id=plan.id,
            object="chat.completion.chunk",
            created=plan.created,
            model=plan.name,
            choices=choices,
            system_fingerprint=plan.fingerprint,
        )
        if plan.continuous_usage:
            chunk.usage = plan.usage()
        elif plan.include_usage:
            chunk.usage = None
        return chunk
