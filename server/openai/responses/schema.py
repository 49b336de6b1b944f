"""The request of POST /v1/responses. Stateful fields are refused, unless their value changes nothing."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue, Tag

from server.openai.chat_schema import FunctionNameText
from server.openai.messages import Sent
from server.openai.options import Request, SamplingOptions, Whole
from server.openai.responses.items import InputItem, by_type
from server.openai.tool_choice import Mode, ToolChoiceObject


class FunctionTool(Sent):
    type: Literal["function"]
    name: FunctionNameText
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


class OtherTool(Sent):
    """A tool that OpenAI runs itself, or whose arguments are not JSON. The model does not see it."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    type: str


Tool = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[OtherTool, Tag("other")],
    by_type({"function": "function"}),
]


class OtherChoice(Request):
    """The choice of such a tool."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    type: str


_CHOICES = ("none", "auto", "required", "any", "function", "tool", "allowed_tools")
ToolChoice = (
    Mode
    | Annotated[
        Annotated[ToolChoiceObject, Tag("known")] | Annotated[OtherChoice, Tag("other")],
        by_type(dict.fromkeys(_CHOICES, "known")),
    ]
)


class SchemaFormat(Request):
    type: Literal["json_schema"]
    name: str | None = Field(default=None, max_length=256, description="without effect")
    schema_: dict[str, JsonValue] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class PlainFormat(Request):
    type: Literal["text", "json_object"]


class TextOptions(Request):
    format: Annotated[SchemaFormat | PlainFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["medium"] | None = Field(default=None, description="only OpenAI's default")


class ReasoningOptions(Request):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        default=None, description="for models whose chat template reads it; ignored by others"
    )
    summary: Literal["auto", "concise", "detailed", "none"] | None = Field(
        default=None, description="accepted; thoughts are never summarised"
    )
    generate_summary: Literal["auto", "concise", "detailed"] | None = Field(default=None, description="as summary")
    context: Literal["auto"] | None = Field(default=None, description="the thoughts in `input` go to the template")
    mode: Literal["standard"] | None = None


class ResponseStreamOptions(Request):
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
        "modalities": (None, ["text"]),
        "enable_response_messages": (None, False),
        "previous_input_messages": (None, []),
        "max_tokens": (None,),
        "n": (None, 1),
    }

    input: str | Annotated[list[InputItem], Field(fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1), Whole] | None = None
    tools: list[Tool] | None = Field(default=None, max_length=1024)
    tool_choice: ToolChoice | None = None
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
    ) = Field(default=None, max_length=64, description="only the log-probabilities have an effect")
    top_logprobs: Annotated[int, Field(ge=0, le=20), Whole] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = Field(default=None, max_length=64)
    stream_options: ResponseStreamOptions | None = None
    client_metadata: dict[str, JsonValue] | None = Field(default=None, description="sent by Codex; accepted, no effect")
