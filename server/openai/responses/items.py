"""The items of `input`. The items of an answer may be sent back unchanged.

Unknown fields inside them are ignored, as in chat messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from server.openai.messages import RefusalPart, Sent, TextPart, typed


def by_type(tags: Mapping[str, str], untyped: str = "other") -> Discriminator:
    """Of a union's members, the one tagged for the value's `type`; what no tag is for is other.

    So an error can say that something is not supported, rather than that it is malformed.
    """

    def tag(value: Any) -> str:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        if kind is None:
            return untyped
        return tags.get(kind, "other") if isinstance(kind, str) else "other"

    return Discriminator(tag)


Status = Literal["in_progress", "completed", "incomplete"]


class OtherPart(Sent):
    """An image or a file: recognised, so that the error can say that it is not supported."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    type: str


Part = Annotated[
    Annotated[TextPart, Tag("text")] | Annotated[RefusalPart, Tag("refusal")] | Annotated[OtherPart, Tag("other")],
    by_type({"text": "text", "refusal": "refusal"}),
    BeforeValidator(typed),
]
Content = str | Annotated[list[Part], Field(min_length=1, fail_fast=True)]
# [] and null mean: no content.
OptionalContent = str | Annotated[list[Part], Field(fail_fast=True)] | None


class InputMessage(Sent):
    type: Literal["message"] | None = "message"
    role: Literal["user", "system", "developer"]
    content: Content


class SentBackMessage(Sent):
    type: Literal["message"] | None = "message"
    role: Literal["assistant"]
    content: OptionalContent = None


class FunctionCallItem(Sent):
    """`arguments` is JSON as text, or the beginning of it if the answer was cut."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str | None = None


class FunctionCallOutput(Sent):
    type: Literal["function_call_output"]
    call_id: str
    output: OptionalContent = None


class Thought(Sent):
    type: Literal["reasoning_text", "summary_text", "text"]
    text: str


class Reasoning(Sent):
    """`content` goes to the template if it uses thoughts; summaries and encrypted parts do not."""

    type: Literal["reasoning"]
    content: Annotated[list[Thought], Field(fail_fast=True)] | None = None


class OtherItem(Sent):
    """A call of one of OpenAI's own tools, or a reference to something that OpenAI stored: not supported."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    type: str


InputItem = Annotated[
    Annotated[Annotated[InputMessage | SentBackMessage, Field(discriminator="role")], Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[Reasoning, Tag("reasoning")]
    | Annotated[OtherItem, Tag("other")],
    by_type({kind: kind for kind in ("message", "function_call", "function_call_output", "reasoning")}, "message"),
]
