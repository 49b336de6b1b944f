"""The messages of a conversation, as clients send them.

Unknown fields inside them are ignored: clients send back what a server or their own SDK added (`parsed`,
`provider_specific_fields`, `cache_control`, timestamps …). None of it is meant for the model.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue


class Sent(BaseModel):
    """A piece of a message, or of a tool: strict types, unknown fields ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class TextPart(Sent):
    type: Literal["text"]
    text: str


class RefusalPart(Sent):
    type: Literal["refusal"]
    refusal: str


class MediaPart(Sent):
    """Recognised, so that the error can say that models here read only text."""

    type: Literal[
        "image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "file", "input_file", "document"
    ]


class ThoughtPart(Sent):
    """A thought among an assistant's parts, in Anthropic's or Mistral's form, or the remains of a hidden one."""

    type: Literal["thinking", "reasoning", "redacted_thinking"]
    thinking: str | list[TextPart] | None = None
    reasoning: str | None = None
    text: str | None = None

    def words(self) -> str:
        if isinstance(self.thinking, list):
            return "".join(part.text for part in self.thinking)
        return self.thinking or self.reasoning or self.text or ""


def typed(part: Any) -> Any:
    """Text in any form: a bare string, the Responses API's types, a part without a type."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    untyped = kind is None and isinstance(part.get("text"), str)
    return {**part, "type": "text"} if untyped or kind in ("input_text", "output_text") else part


Part = Annotated[TextPart | RefusalPart | MediaPart, Field(discriminator="type"), BeforeValidator(typed)]
AssistantPart = Annotated[
    TextPart | RefusalPart | ThoughtPart | MediaPart, Field(discriminator="type"), BeforeValidator(typed)
]
Content = str | Annotated[list[Part], Field(min_length=1, fail_fast=True)]
# [] and null mean: no content.
OptionalContent = str | Annotated[list[Part], Field(fail_fast=True)] | None
AssistantContent = str | Annotated[list[AssistantPart], Field(fail_fast=True)] | None


class InstructionMessage(Sent):
    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(Sent):
    role: Literal["user"]
    content: Content
    name: str | None = None


class FunctionCall(Sent):
    """`arguments` is JSON as text, as in OpenAI's API, or the object itself; invalid JSON if an answer was cut."""

    name: str
    arguments: str | dict[str, JsonValue] | None = None


class ToolCall(Sent):
    id: str | None = None
    type: Literal["function"] | None = "function"
    function: FunctionCall


class AssistantMessage(Sent):
    """An earlier answer, of any server. It may be empty: an answer that was cut before its first token."""

    role: Literal["assistant"]
    content: AssistantContent = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    function_call: FunctionCall | None = Field(default=None, description="the older form of tool_calls")
    reasoning: JsonValue = Field(default=None, description="as reasoning_content, if it is a string")
    reasoning_content: str | None = None
    audio: None = Field(default=None, description="not supported: models here read only text")


class ToolMessage(Sent):
    role: Literal["tool"]
    content: OptionalContent = None
    tool_call_id: str
    name: str | None = None


class FunctionMessage(Sent):
    """The older form of `tool`: the result of the last call of this name."""

    role: Literal["function"]
    content: OptionalContent = None
    name: str


Message = Annotated[
    InstructionMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage,
    Field(discriminator="role"),
]
