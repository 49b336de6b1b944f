"""From chat messages to the prompt's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from config.gateway import GatewayConfig
from protocol.worker_info import TokenizerInfo
from server.errors import InvalidRequest
from server.openai.chat_schema import Tool, as_sent
from server.openai.conversation import joined, leading_instructions, template_messages
from server.openai.messages import Message
from server.reading.tools import formats
from server.reading.tools.formats import CallFormat
from server.reading.tools.instructions import as_text, instructions, with_instructions, with_tools
from server.text.chat_template import RESERVED, ChatTemplate, TemplateError
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

    Several system or developer messages in front are joined where the template takes one. Where the template does not
    show tools in the form that this model's calls are read in, they are told in words. Raises InvalidRequest if it
    does not take the messages or the model has none.
    """
    template = text.template(tools=bool(tools))
    if template is None:
        why = text.template_error or "this model has no chat template"
        raise InvalidRequest(f"{why}: use /v1/completions", param="messages", code="no_chat_template")
    if len(messages) > config.max_messages:
        raise InvalidRequest(f"this server takes at most {config.max_messages} messages", param="messages")
    for name in variables or ():
        if name in RESERVED or name == "tools":
            raise InvalidRequest(f"'chat_template_kwargs.{name}' has a field of its own", param="chat_template_kwargs")
    if continue_final_message and add_generation_prompt:
        raise InvalidRequest(
            "'continue_final_message' and 'add_generation_prompt' exclude each other", param="continue_final_message"
        )
    plain = template_messages(messages, template.mentions("developer"))
    if continue_final_message and not plain[-1]["content"]:
        raise InvalidRequest("'continue_final_message' needs text in the last message", param="continue_final_message")
    shown = [as_sent(tool) for tool in tools] if tools else None
    options: dict[str, Any] = {"tools": shown, "variables": variables, "timeout": config.template_timeout_seconds}
    try:
        form = call_form(text.info, config.tool_call_parser)
        if form is not None and not is_shown_by(form, text.template(tools=True)):
            options["tools"] = None
            plain = as_text(plain, form, knows_tool_role=template.names_role("tool"))
            if shown:
                takes_system = template.takes_instructions(["system"], **options)
                plain = with_instructions(plain, instructions(form, shown), takes_system=takes_system)
        elif shown and template.reads_tools_of_messages():
            plain = with_tools(plain, shown)
        roles = [message["role"] for message in plain[: leading_instructions(plain)]]
        if len(roles) > 1 and not template.takes_instructions(roles, **options):
            plain = joined(plain)
        return template.render(
            plain,
            add_generation_prompt=add_generation_prompt is not False and not continue_final_message,
            continue_final_message=continue_final_message,
            **options,
        )
    except TemplateError as error:
        raise InvalidRequest(str(error)[:500], param="messages", code="chat_template_error") from None


def call_form(info: TokenizerInfo, setting: str) -> CallFormat | None:
    """How the served model writes tool calls: by the setting `tool_call_parser`, its chat template and its name.

    None if the setting is "none".
    """
    return formats.choose(info.tool_chat_template or info.chat_template or "", info.model_id, setting)


def is_shown_by(form: CallFormat, template: ChatTemplate | None) -> bool:
    """Whether the template itself shows the model its tools, in the form that calls are read in."""
    return form.name != formats.GENERIC and template is not None and template.mentions("tools")
