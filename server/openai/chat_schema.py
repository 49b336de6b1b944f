"""The request of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, JsonValue

from server.openai.messages import Message, Sent, TextPart
from server.openai.options import GenerationOptions, Request, ResponseFormat, Whole
from server.openai.tool_choice import ToolChoice

# MCP servers put dots, slashes and colons into names. None of these characters is escaped in JSON.
FunctionNameText = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:/-]+$")]


class FunctionDefinition(Sent):
    name: FunctionNameText
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


class Tool(Sent):
    type: Literal["function"] | None = "function"
    function: FunctionDefinition


def as_sent(tool: Tool) -> dict[str, Any]:
    """The tool as JSON, for templates and grammars: without its null fields, with its schema as it was sent."""
    return {"type": "function", "function": tool.function.model_dump(exclude_unset=True, exclude_none=True)}


class PredictedContent(Request):
    """Text that the answer is expected to repeat in large part; drafts come from it."""

    type: Literal["content"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]


class ChatCompletionRequest(GenerationOptions):
    REFUSED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **GenerationOptions.REFUSED,
        "audio": (None,),
        "modalities": (None, ["text"]),
        "web_search_options": (None,),
        "functions": (None, []),
        "function_call": (None, "none", "auto"),
        "verbosity": (None, "medium"),
        "chat_template": (None,),
        "documents": (None, []),
        "mm_processor_kwargs": (None,),
        "add_special_tokens": (None, False),
        "echo": (None, False),
        "include_reasoning": (None, True),
        "thinking_token_budget": (None,),
    }

    messages: list[Message] = Field(min_length=1, fail_fast=True)
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), Whole] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = Field(default=None, max_length=1024)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    prediction: PredictedContent | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        default=None, description="for models whose chat template uses it; ignored by others"
    )
    chat_template_kwargs: dict[str, JsonValue] | None = Field(default=None, max_length=64)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
