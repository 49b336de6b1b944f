"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel
from starlette.responses import Response

from server.gateway import Gateway, gateway_of
from server.openai.answers import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    FinishReason,
    FunctionCalled,
    FunctionDelta,
    ToolCallDelta,
    ToolCalled,
)
from server.openai.body import body_of
from server.openai.chat_job import plan_chat
from server.openai.chat_schema import ChatCompletionRequest
from server.openai.docs import documented
from server.openai.logprobs import chat_logprobs
from server.openai.origin import origin_of
from server.openai.plan import Plan, served
from server.openai.round_reports import RoundReports, RoundsAlone
from server.openai.serve import CompletionStream, answer
from server.reading.attributed import AttributedEvent, AttributedReader
from server.reading.events import CallArguments, CallStart, Content, Event, ThoughtText
from server.reading.together import AnswerReading
from server.reading.tools.parser import collect
from server.text.choice import Delta

router = APIRouter()


@router.post(
    "/v1/chat/completions", **documented(ChatCompletionRequest, ChatCompletion, chunk=ChatCompletionChunk, streams=True)
)
async def chat_completions(
    request: Request,
    gateway: Annotated[Gateway, Depends(gateway_of)],
    body: Annotated[ChatCompletionRequest, Depends(body_of(ChatCompletionRequest))],
) -> Response:
    """Answers a conversation, whole or as server-sent events."""
    origin = origin_of(request)
    model = served(gateway, body.model)
    plan, reading = await plan_chat(gateway, body, model, prefix="chatcmpl-", origin=origin)
    return await answer(
        gateway,
        request,
        plan,
        lambda: ChatChunks(plan, reading),
        lambda deltas: whole(plan, reading, deltas),
    )


def _logprobs(plan: Plan, deltas: list[Delta]) -> ChatLogprobs | None:
    if plan.choices[0].request.logprobs is None:
        return None
    token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
    entries = [entry for delta in deltas for entry in delta.logprobs or ()]
    return chat_logprobs(plan.text.tokenizer, token_ids, entries)


def whole(plan: Plan, reading: AnswerReading, deltas: list[list[Delta]]) -> BaseModel:
    answer = ChatCompletion(
        id=plan.id,
        object="chat.completion",
        created=plan.created,
        model=plan.name,
        choices=[_choice(plan, reading, index, own) for index, own in enumerate(deltas)],
        usage=plan.usage(),
        system_fingerprint=plan.fingerprint,
    )
    plan.describe(answer)
    return answer


def _choice(plan: Plan, reading: AnswerReading, index: int, deltas: list[Delta]) -> ChatChoice:
    reader = reading.reader()
    cut = deltas[-1].finish_reason == "length"
    events = [*reader.feed("".join(delta.text for delta in deltas)), *reader.finish(cut=cut)]
    parsed = collect([event for event in events if not isinstance(event, ThoughtText)])
    message = ChatMessage(role="assistant", content=parsed.content, refusal=None)
    if parsed.calls:
        message.tool_calls = [
            ToolCalled(id=call.id, type="function", function=FunctionCalled(name=call.name, arguments=call.arguments))
            for call in parsed.calls
        ]
    elif parsed.content is None:
        message.content = ""
    if reading.thought is not None:
        message.reasoning_content = "".join(event.text for event in events if isinstance(event, ThoughtText)) or None
    last = deltas[-1]
    return ChatChoice(
        index=index,
        message=message,
        logprobs=_logprobs(plan, deltas),
        finish_reason=finish_reason(last.finish_reason or "stop", reader.called),
        stop_reason=last.stop_reason,
    )


def finish_reason(reason: Literal["stop", "length"], called: bool) -> FinishReason:
    return "tool_calls" if called and reason == "stop" else reason


class ChatChunks(CompletionStream):
    """The stream: a chunk with the role for each choice, deltas, a chunk with the finish reason, the usage."""

    def __init__(self, plan: Plan, reading: AnswerReading) -> None:
        self._plan = plan
        self._readers = [reading.reader() for _ in plan.choices]
        self._attributed = [AttributedReader(reader) for reader in self._readers]
        self._reports = [RoundReports() for _ in plan.choices]

    def opening(self) -> list[BaseModel]:
        return [
            self._chunk([self._choice(choice.index, ChatDelta(role="assistant", content=""))])
            for choice in self._plan.choices
        ]

    def delta(self, delta: Delta, last: bool) -> list[BaseModel]:
        reader = self._readers[delta.index]
        told = self._read(delta)
        choices = [self._choice(delta.index, chat_delta(one.event)) for one in told]
        if delta.logprobs:
            choices = choices or [self._choice(delta.index, ChatDelta(content=""))]
            choices[0].logprobs = _logprobs(self._plan, [delta])
        if delta.finish_reason is not None:
            final = self._choice(delta.index, ChatDelta())
            final.finish_reason = finish_reason(delta.finish_reason, reader.called)
            final.stop_reason = delta.stop_reason
            choices.append(final)
        chunks = [self._chunk([choice]) for choice in choices]
        if delta.attributed is not None:
            self._reports[delta.index].made(delta.attributed)
            self._report(delta.index, told, chunks)
        if last and not self._plan.include_usage:
            self._plan.describe(chunks[-1])
        return list[BaseModel](chunks)

    def _read(self, delta: Delta) -> list[AttributedEvent]:
        """What the delta's text turns out to hold, each with its tokens if they are asked for."""
        cut = delta.finish_reason == "length"
        if delta.attributed is None:
            reader = self._readers[delta.index]
            events = reader.feed(delta.text)
            if delta.finish_reason is not None:
                events += reader.finish(cut=cut)
            return [AttributedEvent(event) for event in events]
        attributed = self._attributed[delta.index]
        told = attributed.feed(delta.attributed.spans)
        if delta.finish_reason is not None:
            told += attributed.finish(cut=cut)
        return told

    def _report(self, index: int, told: list[AttributedEvent], chunks: list[ChatCompletionChunk]) -> None:
        """Have the chunks of a choice, of which the first are those of `told`, say which tokens were drafted."""
        for place, chunk in enumerate(chunks):
            rounds = self._reports[index].take(told[place].spans if place < len(told) else ())
            if rounds:
                chunk.tandem = RoundsAlone(rounds=rounds)

    def closing(self) -> list[BaseModel]:
        if not self._plan.include_usage:
            return []
        chunk = self._chunk([])
        chunk.usage = self._plan.usage()
        self._plan.describe(chunk)
        return [chunk]

    def _choice(self, index: int, delta: ChatDelta) -> ChatChunkChoice:
        return ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None)

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


def chat_delta(event: Event) -> ChatDelta:
    """The first delta of a call has everything but the arguments, which follow."""
    match event:
        case Content():
            return ChatDelta(content=event.text)
        case ThoughtText():
            return ChatDelta(reasoning_content=event.text)
        case CallStart():
            function = FunctionDelta(name=event.name, arguments="")
            return ChatDelta(
                tool_calls=[ToolCallDelta(index=event.index, id=event.id, type="function", function=function)]
            )
        case CallArguments():
            function = FunctionDelta(arguments=event.text)
            return ChatDelta(tool_calls=[ToolCallDelta(index=event.index, function=function)])
