"""The request of POST /v1/responses. Its stateful fields are refused, unless their value asks for nothing."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue, Tag

from protocol.messages import MAX_TOKENS_PER_MESSAGE
from server.openai.chat_schema import Metadata
from server.openai.options import Request, SamplingOptions
from server.openai.responses.items import InputItem, by_type


class FunctionTool(Request):
    type: Literal["function"]
    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


class OtherTool(Request):
    """One that OpenAI would run itself, or that writes something else than JSON."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    type: str


Tool = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[OtherTool, Tag("other")],
    by_type({"function": "function"}),
]


class NamedFunction(Request):
    type: Literal["function"]
    name: str


class SchemaFormat(Request):
    type: Literal["json_schema"]
    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")
    schema_: dict[str, JsonValue] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class PlainFormat(Request):
    type: Literal["text", "json_object"]


class TextOptions(Request):
    format: Annotated[SchemaFormat | PlainFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["medium"] | None = Field(default=None, description="OpenAI's default alone")


class ReasoningOptions(Request):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        default=None, description="for models whose chat template reads it"
    )
    summary: Literal["auto"] | None = Field(default=None, description="accepted; thoughts are shown, not summarised")
    generate_summary: None = None


class StreamOptions(Request):
    include_obfuscation: bool | None = Field(default=None, description="accepted; nothing is padded here")


class ResponsesRequest(SamplingOptions):
    REFUSED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **SamplingOptions.REFUSED,
        "previous_response_id": (None,),
        "conversation": (None,),
        "prompt": (None,),
        "background": (None, False),
        "max_tool_calls": (None,),
        "truncation": (None, "disabled"),
        "context_management": (None, []),
        "moderation": (None,),
        "prompt_cache_options": (None,),
        "modalities": (None, ["text"]),
        "enable_response_messages": (None, False),
        "previous_input_messages": (None, []),
        "max_tokens": (None,),
        "n": (None, 1),
    }

    input: str | Annotated[list[InputItem], Field(fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS_PER_MESSAGE)
    tools: list[Tool] | None = Field(default=None, max_length=1024)
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: (
        list[
            Literal[
                "message.output_text.logprobs",
                "reasoning.encrypted_content",
                "file_search_call.results",
                "web_search_call.results",
                "web_search_call.action.sources",
                "message.input_image.image_url",
                "computer_call_output.output.image_url",
                "code_interpreter_call.outputs",
            ]
        ]
        | None
    ) = Field(
        default=None, max_length=64, description="all but the log-probabilities are of things that never come up here"
    )
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    chat_template_kwargs: dict[str, JsonValue] | None = Field(default=None, max_length=64)
    stream_options: StreamOptions | None = None

    # Accepted as OpenAI accepts them; they change nothing about the answer.
    metadata: Metadata | None = Field(default=None, max_length=16)
    store: bool | None = Field(default=None, description="accepted; nothing is stored")
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    safety_identifier: str | None = Field(default=None, max_length=1024)
    prompt_cache_key: str | None = Field(default=None, max_length=1024)
    prompt_cache_retention: str | None = Field(default=None, max_length=64)
