"""The forms of `tool_choice` in both of OpenAI's APIs, and `any`, which Anthropic's and Mistral's clients send."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from server.openai.options import Request

Mode = Literal["none", "auto", "required", "any"]


class ModeChoice(Request):
    type: Mode


class FunctionName(Request):
    name: str


class NamedTool(Request):
    """The name is in `function`, as in chat completions, or beside the type, as in responses."""

    type: Literal["function", "tool"]
    function: FunctionName | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _names_one(self) -> NamedTool:
        if (self.function is None) == (self.name is None):
            raise ValueError("exactly one of 'function' and 'name' is needed")
        return self


class AllowedTools(Request):
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]] = Field(min_length=1, max_length=1024)


class AllowedToolsChoice(Request):
    """`mode` and `tools` are in `allowed_tools`, as in chat completions, or beside the type, as in responses."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[dict[str, Any]] | None = Field(default=None, min_length=1, max_length=1024)

    @model_validator(mode="after")
    def _says_one(self) -> AllowedToolsChoice:
        beside = self.mode is not None and self.tools is not None
        if (self.allowed_tools is None) != beside:
            raise ValueError("'mode' and 'tools' are needed, once")
        return self


ToolChoiceObject = Annotated[ModeChoice | NamedTool | AllowedToolsChoice, Field(discriminator="type")]
ToolChoice = Mode | ToolChoiceObject


def choice_as_json(choice: str | BaseModel | None) -> Any:
    """As server.reading.tools.choice.resolve takes it."""
    return choice.model_dump(exclude_none=True) if isinstance(choice, BaseModel) else choice
