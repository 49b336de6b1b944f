"""What a conversation is made of: the items of `input`. Those of an answer may be sent back as they came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, JsonValue, Tag

from server.openai.options import Request


def by_type(tags: Mapping[str, str], untyped: str = "other") -> Discriminator:
    """Of a union's members, the one tagged for the value's `type`; what no tag is for is other.

    So an answer can say that something is not supported here, rather than that it is malformed.
    """

    def tag(value: Any) -> str:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        if kind is None:
            return untyped
        return tags.get(kind, "other") if isinstance(kind, str) else "other"

    return Discriminator(tag)


Status = Literal["in_progress", "completed", "incomplete"]


class TextPart(Request):
    """`output_text` is what an answer said; the fields beside the text are those it may have come with."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[JsonValue] | None = None
    logprobs: list[JsonValue] | None = None
    parsed: JsonValue = None


class RefusalPart(Request):
    type: Literal["refusal"]
    refusal: str


class OtherPart(Request):
    """Images and files: known, so that the answer can say what is wrong."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    type: str


Part = Annotated[
    Annotated[TextPart, Tag("text")] | Annotated[RefusalPart, Tag("refusal")] | Annotated[OtherPart, Tag("other")],
    by_type({"input_text": "text", "output_text": "text", "refusal": "refusal"}),
]
Content = str | Annotated[list[Part], Field(min_length=1, fail_fast=True)]


class Message(Request):
    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer", "assistant"]
    content: Content
    id: str | None = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCall(Request):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None


class FunctionCallOutput(Request):
    type: Literal["function_call_output"]
    call_id: str
    output: Content
    id: str | None = None
    status: Status | None = None


class Thought(Request):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class Reasoning(Request):
    """`content` goes to the template, where it takes such; summaries and what is encrypted do not."""

    type: Literal["reasoning"]
    summary: Annotated[list[Thought], Field(fail_fast=True)] | None = None
    content: Annotated[list[Thought], Field(fail_fast=True)] | None = None
    encrypted_content: str | None = None
    id: str | None = None
    status: Status | None = None


class OtherItem(Request):
    """Calls of OpenAI's own tools, and references to what it stored."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    type: str


InputItem = Annotated[
    Annotated[Message, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[Reasoning, Tag("reasoning")]
    | Annotated[OtherItem, Tag("other")],
    by_type({kind: kind for kind in ("message", "function_call", "function_call_output", "reasoning")}, "message"),
]
