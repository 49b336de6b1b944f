"""The requests of POST /v1/completions, /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, JsonValue, Tag

from protocol.messages import TokenIds
from server.openai.chat_schema import Tool
from server.openai.messages import Message
from server.openai.options import AllWhole, GenerationOptions, Request, Whole

Ids = Annotated[TokenIds, AllWhole]


def _kind(prompt: Any) -> str | None:
    """Which form of prompt was meant, so that only its errors are reported."""
    if isinstance(prompt, str):
        return "text"
    if not isinstance(prompt, list):
        return None
    if not prompt or isinstance(prompt[0], int | float):
        return "ids"
    return "texts" if isinstance(prompt[0], str) else "lists of ids" if isinstance(prompt[0], list) else None


Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[list[str], Field(min_length=1, max_length=128), Tag("texts")]
    | Annotated[list[Ids], Field(min_length=1, max_length=128), Tag("lists of ids")],
    Discriminator(
        _kind,
        custom_error_type="prompt_form",
        custom_error_message="must be a string, a list of strings, a list of token ids or a list of such lists",
    ),
]


class CompletionRequest(GenerationOptions):
    REFUSED: ClassVar[dict[str, tuple[Any, ...]]] = {
        **GenerationOptions.REFUSED,
        "suffix": (None, ""),
        "response_format": (None, {"type": "text"}),
        "prompt_embeds": (None,),
    }

    prompt: Prompt
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20), Whole] | None = None
    add_special_tokens: bool | None = None


class TokenizeRequest(Request):
    """Either a prompt, or messages for the chat template."""

    model: str | None = Field(default=None, max_length=512)
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1, fail_fast=True)
    add_special_tokens: bool | None = Field(default=None, description="default: true for a prompt, false for messages")
    add_generation_prompt: bool | None = Field(default=None, description="default: true, unless a message is continued")
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = Field(default=None, max_length=64)
    tools: list[Tool] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Request):
    model: str | None = Field(default=None, max_length=512)
    tokens: Ids
