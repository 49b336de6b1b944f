"""The request of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from server.openai.options import GenerationOptions, Request, ResponseFormat

Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


class TextPart(Request):
    type: Literal["text"]
    text: str


class RefusalPart(Request):
    type: Literal["refusal"]
    refusal: str


class MediaPart(Request):
    """Known, so that the answer can say what is wrong: the models here read text."""

    type: Literal["image_url", "input_audio", "file", "video_url"]
    image_url: JsonValue = None
    input_audio: JsonValue = None
    file: JsonValue = None
    video_url: JsonValue = None


Part = Annotated[TextPart | RefusalPart | MediaPart, Field(discriminator="type")]
Content = str | Annotated[list[Part], Field(min_length=1, fail_fast=True)]


class InstructionMessage(Request):
    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(Request):
    role: Literal["user"]
    content: Content
    name: str | None = None


class FunctionCall(Request):
    name: str
    arguments: str


class ToolCall(Request):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class AssistantMessage(Request):
    """What this server answered may be sent back as it is; the fields it leaves null stay allowed."""

    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    annotations: list[JsonValue] | None = None
    function_call: None = None
    audio: None = None

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        if self.content is None and not self.tool_calls and self.refusal is None:
            raise ValueError("content is required unless there are tool_calls")
        return self


class ToolMessage(Request):
    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: str | None = None


Message = Annotated[
    InstructionMessage | UserMessage | AssistantMessage | ToolMessage,
    Field(discriminator="role"),
]


class FunctionDefinition(Request):
    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


class Tool(Request):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(Request):
    name: str


class NamedTool(Request):
    type: Literal["function"]
    function: FunctionName


class PredictedContent(Request):
    """Text that much of the answer is expected to repeat: it becomes the draft."""

    type: Literal["content"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]


class ChatCompletionRequest(GenerationOptions):
    REFUSED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **GenerationOptions.REFUSED,
        "audio": (None,),
        "modalities": (None, ["text"]),
        "web_search_options": (None,),
        "functions": (None, []),
        "function_call": (None, "none"),
        "verbosity": (None,),
        "chat_template": (None,),
        "documents": (None, []),
        "mm_processor_kwargs": (None,),
        "add_special_tokens": (None, False),
        "echo": (None, False),
        "include_reasoning": (None, True),
        "thinking_token_budget": (None,),
    }

    messages: list[Message] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=1_048_576)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = Field(default=None, max_length=1024)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    prediction: PredictedContent | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        default=None, description="for models whose chat template reads it"
    )
    chat_template_kwargs: dict[str, JsonValue] | None = Field(default=None, max_length=64)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    # Accepted as OpenAI accepts them; they change nothing about the answer.
    metadata: Metadata | None = Field(default=None, max_length=16)
    store: bool | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    safety_identifier: str | None = Field(default=None, max_length=1024)
    prompt_cache_key: str | None = Field(default=None, max_length=1024)
    prompt_cache_retention: str | None = Field(default=None, max_length=64)
