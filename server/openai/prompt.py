"""From chat messages to the prompt's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from config.gateway import GatewayConfig
from server.errors import InvalidRequest, NotSupported
from server.openai.chat_schema import AssistantMessage, Content, MediaPart, Message, TextPart, Tool, ToolMessage
from server.text.chat_template import RESERVED, TemplateError
from server.text.model import TextModel


def render_chat(
    text: TextModel,
    messages: Sequence[Message],
    config: GatewayConfig,
    *,
    tools: Sequence[Tool] | None = None,
    variables: dict[str, Any] | None = None,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool = False,
) -> str:
    """The rendered template. Slow for long prompts: call it in a thread.

    Raises InvalidRequest where the template does not take the messages or the model has none.
    """
    template = text.template(tools=bool(tools))
    if template is None:
        raise InvalidRequest(
            "this model has no chat template: use /v1/completions", param="messages", code="no_chat_template"
        )
    if len(messages) > config.max_messages:
        raise InvalidRequest(f"this server takes at most {config.max_messages} messages", param="messages")
    for name in variables or ():
        if name in RESERVED or name == "tools":
            raise InvalidRequest(f"'chat_template_kwargs.{name}' has a field of its own", param="chat_template_kwargs")
    if continue_final_message and add_generation_prompt:
        raise InvalidRequest(
            "'continue_final_message' and 'add_generation_prompt' exclude each other", param="continue_final_message"
        )
    knows_developer = template.mentions("developer")
    plain = [_plain(message, f"messages[{index}]", knows_developer) for index, message in enumerate(messages)]
    if continue_final_message and not plain[-1]["content"]:
        raise InvalidRequest("'continue_final_message' needs text in the last message", param="continue_final_message")
    try:
        return template.render(
            plain,
            tools=[tool.model_dump(exclude_unset=True) for tool in tools] if tools else None,
            add_generation_prompt=add_generation_prompt is not False and not continue_final_message,
            continue_final_message=continue_final_message,
            variables=variables,
            timeout=config.template_timeout_seconds,
        )
    except TemplateError as error:
        raise InvalidRequest(str(error)[:500], param="messages", code="chat_template_error") from None


def _plain(message: Message, param: str, knows_developer: bool) -> dict[str, Any]:
    """A message as templates expect it: text in one string, tool arguments as objects."""
    role = message.role
    if role == "developer" and not knows_developer:
        role = "system"
    plain: dict[str, Any] = {"role": role, "content": _text(message.content, f"{param}.content")}
    if message.name is not None:
        plain["name"] = message.name
    if isinstance(message, ToolMessage):
        plain["tool_call_id"] = message.tool_call_id
    if isinstance(message, AssistantMessage):
        if message.content is None and message.refusal is not None:
            plain["content"] = message.refusal
        reasoning = message.reasoning_content or message.reasoning
        if reasoning is not None:
            plain["reasoning_content"] = reasoning
        if message.tool_calls:
            plain["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": _arguments(call.function.arguments, f"{param}.tool_calls[{index}]"),
                    },
                }
                for index, call in enumerate(message.tool_calls)
            ]
    return plain


def _text(content: Content | None, param: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    pieces: list[str] = []
    for index, part in enumerate(content):
        if isinstance(part, MediaPart):
            raise NotSupported(f"'{param}[{index}]' is of type {part.type}: this model reads text only", param=param)
        pieces.append(part.text if isinstance(part, TextPart) else part.refusal)
    return "\n".join(pieces)


def _arguments(text: str, param: str) -> Any:
    try:
        return orjson.loads(text) if text else {}
    except orjson.JSONDecodeError:
        raise InvalidRequest(f"'{param}.function.arguments' is not JSON", param=f"{param}.function.arguments") from None
