"""A Responses answer, whole or as a stream of events; both take the same steps."""

from __future__ import annotations

import time
from typing import Any, Literal

from pydantic import BaseModel

from server.errors import ApiError
from server.openai.logprobs import chat_logprobs
from server.openai.plan import Plan
from server.openai.responses.answers import (
    Failure,
    Incomplete,
    InputDetails,
    LifecycleEvent,
    OutputDetails,
    ResponseObject,
    ResponseUsage,
    ServerEvent,
)
from server.openai.responses.output import Output
from server.openai.responses.schema import ResponsesRequest, SchemaFormat
from server.openai.tool_choice import choice_as_json
from server.reading.together import AnswerReading
from server.text.choice import Delta


class ResponseEvents:
    """The stream of one answer (server.openai.serve.Chunks). It ends with the response's last state, and no mark."""

    mark = b""

    def __init__(self, body: ResponsesRequest, plan: Plan, reading: AnswerReading) -> None:
        self._body = body
        self._plan = plan
        self._reader = reading.reader()
        self._output = Output()
        self._incomplete = False
        self._opened = False
        self._sent = 0

    def opening(self) -> list[BaseModel]:
        self._opened = True
        response = self._response("in_progress")
        return self._numbered(
            [
                LifecycleEvent(type="response.created", response=response),
                LifecycleEvent(type="response.in_progress", response=response),
            ]
        )

    def delta(self, delta: Delta, last: bool) -> list[BaseModel]:
        events = self._reader.feed(delta.text)
        if delta.finish_reason is not None:
            events += self._reader.finish(cut=delta.finish_reason == "length")
        logprobs = chat_logprobs(self._plan.text.tokenizer, delta.token_ids, delta.logprobs) if delta.logprobs else None
        sent = self._output.feed(events, logprobs.content if logprobs is not None else ())
        if delta.finish_reason is not None:
            self._incomplete = delta.finish_reason == "length"
            sent += self._output.finish("incomplete" if self._incomplete else "completed")
        return self._numbered(sent)

    def closing(self) -> list[BaseModel]:
        response = self.finished()
        return self._numbered(
            [
                LifecycleEvent(
                    type="response.incomplete" if self._incomplete else "response.completed", response=response
                )
            ]
        )

    def failure(self, error: ApiError) -> list[BaseModel]:
        """The client may have received only comments so far; its stream still begins like every stream."""
        opening = [] if self._opened else self.opening()
        response = self._response("failed")
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        response.error = Failure(code=code, message=error.message)
        return [*opening, *self._numbered([LifecycleEvent(type="response.failed", response=response)])]

    def finished(self) -> ResponseObject:
        """The answer, after its last delta."""
        plan = self._plan
        response = self._response("incomplete" if self._incomplete else "completed")
        response.usage = self._usage()
        plan.describe(response)
        if self._incomplete:
            response.incomplete_details = Incomplete(reason="max_output_tokens")
        else:
            response.completed_at = int(time.time())
        return response

    def _numbered(self, events: list[ServerEvent]) -> list[BaseModel]:
        for event in events:
            event.sequence_number = self._sent
            self._sent += 1
        return list[BaseModel](events)

    def _usage(self) -> ResponseUsage:
        usage = self._plan.usage()
        thought = self._plan.text.tokenizer.encode(self._output.reasoning, add_special_tokens=False)
        prompt = usage.prompt_tokens_details
        return ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputDetails(
                cached_tokens=prompt.cached_tokens if prompt is not None else 0, cache_write_tokens=0
            ),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputDetails(
                reasoning_tokens=min(len(thought), usage.completion_tokens),
                accepted_prediction_tokens=usage.completion_tokens_details.accepted_prediction_tokens,
                rejected_prediction_tokens=usage.completion_tokens_details.rejected_prediction_tokens,
            ),
            total_tokens=usage.total_tokens,
        )

    def _response(self, status: Literal["in_progress", "completed", "incomplete", "failed"]) -> ResponseObject:
        body, plan = self._body, self._plan
        return ResponseObject(
            id=plan.id,
            object="response",
            created_at=plan.created,
            completed_at=None,
            status=status,
            error=None,
            incomplete_details=None,
            model=plan.name,
            output=list(self._output.items),
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_logprobs=body.top_logprobs or 0,
            tools=[tool.model_dump(exclude_unset=True) for tool in body.tools or ()],
            tool_choice=choice_as_json(body.tool_choice) or "auto",
            parallel_tool_calls=body.parallel_tool_calls is not False,
            text={"format": _format(body)},
            reasoning={"effort": body.reasoning.effort if body.reasoning is not None else None, "summary": None},
            metadata=dict(body.metadata or {}),
            user=body.user,
            safety_identifier=body.safety_identifier,
            prompt_cache_key=body.prompt_cache_key,
            service_tier="default",
            truncation="disabled",
            background=False,
            store=False,
            previous_response_id=None,
            usage=None,
            system_fingerprint=plan.fingerprint,
        )


def _format(body: ResponsesRequest) -> dict[str, Any]:
    form = body.text.format if body.text is not None else None
    if isinstance(form, SchemaFormat):
        return form.model_dump(by_alias=True)
    return {"type": form.type if form is not None else "text"}
