"""The answer of POST /v1/responses, and the events of its stream, in OpenAI's form."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, JsonValue

from server.openai.answers import ChatLogprob, Metrics, Tandem
from server.openai.responses.items import Status
from server.openai.serve import NamedEvent


class OutputText(BaseModel):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[JsonValue]
    logprobs: list[ChatLogprob]


class ReasoningText(BaseModel):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class OutputMessage(BaseModel):
    type: Literal["message"] = "message"
    id: str
    role: Literal["assistant"] = "assistant"
    status: Status
    content: list[OutputText]


class OutputCall(BaseModel):
    type: Literal["function_call"] = "function_call"
    id: str
    call_id: str
    name: str
    arguments: str = Field(description="JSON, as the model wrote it")
    status: Status


class OutputReasoning(BaseModel):
    """The model's thought, unabridged."""

    type: Literal["reasoning"] = "reasoning"
    id: str
    summary: list[JsonValue]
    content: list[ReasoningText]
    status: Status


OutputItem = OutputMessage | OutputCall | OutputReasoning


class InputDetails(BaseModel):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(BaseModel):
    """output_tokens includes the accepted draft tokens and not the rejected ones."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Failure(BaseModel):
    code: str
    message: str


class Incomplete(BaseModel):
    reason: Literal["max_output_tokens"]


class ResponseObject(BaseModel):
    """The request's fields are repeated in it, with defaults filled in; nothing is stored."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: Failure | None
    incomplete_details: Incomplete | None
    model: str
    output: list[OutputItem]
    instructions: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    top_logprobs: int
    tools: list[dict[str, JsonValue]]
    tool_choice: str | dict[str, JsonValue]
    parallel_tool_calls: bool
    text: dict[str, JsonValue]
    reasoning: dict[str, JsonValue]
    metadata: dict[str, str]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    service_tier: Literal["default"] = "default"
    truncation: Literal["disabled"] = "disabled"
    background: Literal[False] = False
    store: Literal[False] = False
    previous_response_id: None = None
    usage: ResponseUsage | None
    system_fingerprint: str
    metrics: Metrics | None = None
    tandem: Tandem | None = None


class ServerEvent(NamedEvent):
    """`sequence_number` counts a stream's events from 0."""

    sequence_number: int = 0


class LifecycleEvent(ServerEvent):
    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
    ]
    response: ResponseObject


class ItemEvent(ServerEvent):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class ContentEvent(ServerEvent):
    """About one part of an item."""

    item_id: str
    output_index: int
    content_index: int = 0


class PartEvent(ContentEvent):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputText | ReasoningText


class TextDelta(ContentEvent):
    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[ChatLogprob]


class TextDone(ContentEvent):
    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[ChatLogprob]


class ReasoningDelta(ContentEvent):
    type: Literal["response.reasoning_text.delta"]
    delta: str


class ReasoningDone(ContentEvent):
    type: Literal["response.reasoning_text.done"]
    text: str


class ArgumentsDelta(ServerEvent):
    type: Literal["response.function_call_arguments.delta"]
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(ServerEvent):
    type: Literal["response.function_call_arguments.done"]
    item_id: str
    output_index: int
    name: str
    arguments: str
