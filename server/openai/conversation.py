"""From checked messages to those that a chat template is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from server.errors import NotSupported
from server.openai.messages import (
    AssistantContent,
    AssistantMessage,
    Content,
    FunctionCall,
    FunctionMessage,
    InstructionMessage,
    MediaPart,
    Message,
    TextPart,
    ThoughtPart,
    ToolMessage,
)
from server.text import exact_json


def template_messages(messages: Sequence[Message], knows_developer: bool) -> list[dict[str, Any]]:
    """Text in one string, tool arguments as values; `developer` is `system` where the template has no such role.

    Raises NotSupported for what is no text.
    """
    conversation = _Conversation(knows_developer)
    return [conversation.plain(message, f"messages[{index}]") for index, message in enumerate(messages)]


def leading_instructions(messages: Sequence[dict[str, Any]]) -> int:
    """How many system or developer messages stand in front."""
    return next(
        (i for i, message in enumerate(messages) if message["role"] not in ("system", "developer")), len(messages)
    )


def joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The instructions in front as one message, in order, for a template that takes one."""
    count = leading_instructions(messages)
    content = "\n\n".join(message["content"] for message in messages[:count] if message["content"])
    return [{**messages[0], "content": content}, *messages[count:]]


class _Conversation:
    """Goes through the messages in order: calls in the form before `tool_calls` have no ids, but templates want one."""

    def __init__(self, knows_developer: bool) -> None:
        self._knows_developer = knows_developer
        self._old_calls = 0

    def plain(self, message: Message, param: str) -> dict[str, Any]:
        text, thought = _text(message.content, f"{param}.content")
        plain: dict[str, Any] = {"role": message.role, "content": text}
        if message.name is not None:
            plain["name"] = message.name
        match message:
            case InstructionMessage() if not self._knows_developer:
                plain["role"] = "system"
            case ToolMessage():
                plain["tool_call_id"] = message.tool_call_id
            case FunctionMessage():
                plain |= {"role": "tool", "tool_call_id": self._old_id()}
            case AssistantMessage():
                self._add_assistant(plain, message, thought)
        return plain

    def _add_assistant(self, plain: dict[str, Any], message: AssistantMessage, thought: str) -> None:
        if not plain["content"] and message.refusal is not None:
            plain["content"] = message.refusal
        told = message.reasoning_content or message.reasoning
        reasoning = told if isinstance(told, str) and told else thought
        if reasoning:
            plain["reasoning_content"] = reasoning
        calls = [_call(call.id, call.function) for call in message.tool_calls or ()]
        if not calls and message.function_call is not None:
            self._old_calls += 1
            calls = [_call(self._old_id(), message.function_call)]
        if calls:
            plain["tool_calls"] = calls

    def _old_id(self) -> str:
        """Nine letters and digits: some templates insist on that."""
        return f"call{self._old_calls:05d}"


def _call(call_id: str | None, function: FunctionCall) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": function.name, "arguments": _arguments(function.arguments)}}
    return call if call_id is None else {"id": call_id, **call}


def _arguments(given: str | dict[str, Any] | None) -> Any:
    """What the JSON says, whatever kind of value it is; text that is no JSON as it stands."""
    if not isinstance(given, str):
        return given or {}
    try:
        value = exact_json.loads(given) if given.strip() else None
    except ValueError:
        return given
    return {} if value is None else value


def _text(content: Content | AssistantContent, param: str) -> tuple[str, str]:
    """The text, and what was thought in parts of its own."""
    if content is None or isinstance(content, str):
        return content or "", ""
    pieces: list[str] = []
    thoughts: list[str] = []
    for index, part in enumerate(content):
        match part:
            case MediaPart():
                raise NotSupported(
                    f"'{param}[{index}]' is of type {part.type}: this model reads text only", param=f"{param}[{index}]"
                )
            case ThoughtPart():
                thoughts.append(part.words())
            case TextPart():
                pieces.append(part.text)
            case _:
                pieces.append(part.refusal)
    return "\n".join(pieces), "".join(thoughts)
