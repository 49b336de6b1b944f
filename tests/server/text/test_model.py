"""What is built once from a target's tokenizer."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from config.gateway import GatewayConfig
from server.errors import InvalidRequest
from server.openai.chat_schema import ChatCompletionRequest
from server.openai.prompt import render_chat
from server.text.model import TextModel, TextModels
from testing.patience import PATIENCE
from tests.server.openai.api_doubles import served_model


@pytest.mark.parametrize("field", ["chat_template", "tool_chat_template"])
def test_a_broken_chat_template_refuses_chats_alone(field: str, caplog: pytest.LogCaptureFixture) -> None:
    info = served_model().tokenizer.model_copy(update={field: "{% for x in %}"})
    with caplog.at_level(logging.ERROR):
        text = TextModel(info)
    assert "chat template cannot be compiled" in caplog.text
    assert text.tokenizer.encode("words", add_special_tokens=False)
    body = ChatCompletionRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    with pytest.raises(InvalidRequest, match=r"cannot be compiled: .*: use /v1/completions") as refused:
        render_chat(text, body.messages, GatewayConfig(target_urls=["http://127.0.0.1:1"]))
    assert refused.value.code == "no_chat_template"


def test_slow_chats_hold_up_no_other_text() -> None:
    async def scenario() -> None:
        models = TextModels(threads=1)
        go = threading.Event()
        chats = [asyncio.create_task(models.run_chat(lambda: go.wait(PATIENCE))) for _ in range(3)]
        try:
            assert await asyncio.wait_for(models.run(lambda: "there"), PATIENCE) == "there"
            assert not any(chat.done() for chat in chats)
        finally:
            go.set()
            assert await asyncio.gather(*chats) == [True] * 3
            models.close()

    asyncio.run(scenario())
