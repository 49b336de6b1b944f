"""How the served model writes tool calls, and who tells it to."""

from __future__ import annotations

from protocol.messages import TokenizerInfo
from server.reading.tools import formats
from server.reading.tools.formats import CallFormat
from server.text.chat_template import ChatTemplate


def call_form(info: TokenizerInfo, setting: str) -> CallFormat | None:
    """By the setting `tool_call_parser`, the chat template and the model's name; None where the setting is none."""
    return formats.choose(info.tool_chat_template or info.chat_template or "", info.model_id, setting)


def is_shown_by(form: CallFormat, template: ChatTemplate | None) -> bool:
    """Whether the template itself shows the model its tools, in the form that calls are read in."""
    return form.name != formats.GENERIC and template is not None and template.mentions("tools")
