"""A chat as a drafter's own chat template has it, for one that reads text (docs/vocabularies.md)."""

from __future__ import annotations

from functools import lru_cache

from config.gateway import GatewayConfig
from server.backend import OwnPrompt, ServedModel
from server.openai.chat_schema import ChatCompletionRequest
from server.openai.conversation import template_messages
from server.text.chat_template import ChatTemplate, TemplateError


def own_prompt(body: ChatCompletionRequest, model: ServedModel, config: GatewayConfig) -> OwnPrompt | None:
    """None where no such drafter is used, or its template does not take these messages: it only helps to draft."""
    asked = body.speculative
    if (asked is not None and asked.enabled is False) or body.continue_final_message:
        return None
    info = model.drafter.templates.get(asked.draft_model if asked is not None else None)
    if info is None or info.chat_template is None:
        return None
    template = _compiled(info.chat_template, tuple(sorted(info.special_tokens.items())))
    if template is None:
        return None
    try:
        messages = template_messages(body.messages, template.mentions("developer"))
        text = template.render(messages, timeout=config.template_timeout_seconds)
    except TemplateError:
        return None
    return OwnPrompt(info.model_id, text)


@lru_cache(4)
def _compiled(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate | None:
    try:
        return ChatTemplate(source, dict(special_tokens))
    except ValueError:
        return None
