"""Real processes, spoken to as users do: the official OpenAI SDK and curl."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

import openai
import pytest

from testing.patience import PATIENCE
from testing.stacks import Services

MESSAGES: Any = [{"role": "user", "content": "Tell me about the sea."}]
OPTIONS: dict[str, Any] = {"max_tokens": 24, "temperature": 0.8, "seed": 7}
NO_SPECULATION = {"speculative": {"enabled": False}}


@pytest.fixture
def sdk(tiny: Services) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{tiny.gateway.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)


@pytest.fixture
def expected(tiny: Services, sdk: openai.OpenAI) -> str:
    """Plain decoding's text, which every other way of asking must give."""
    answer = sdk.chat.completions.create(
        model=tiny.client.model, messages=MESSAGES, extra_body=NO_SPECULATION, **OPTIONS
    )
    text: str = answer.choices[0].message.content
    assert text
    return text


def test_models(tiny: Services, sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == [tiny.client.model]
    with pytest.raises(openai.NotFoundError):
        sdk.chat.completions.create(model="no-such-model", messages=MESSAGES)


def test_sync(tiny: Services, sdk: openai.OpenAI, expected: str) -> None:
    answer = sdk.chat.completions.create(model=tiny.client.model, messages=MESSAGES, **OPTIONS)
    assert answer.choices[0].message.content == expected
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    accepted = answer.usage.completion_tokens_details.accepted_prediction_tokens or 0
    assert 0 <= accepted < answer.usage.completion_tokens <= OPTIONS["max_tokens"]


def test_a_prompt_asked_again_is_told_as_cached(tiny: Services, sdk: openai.OpenAI, expected: str) -> None:
    answer = sdk.chat.completions.create(model=tiny.client.model, messages=MESSAGES, **OPTIONS)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    # The last of them is always computed: its logits are wanted.
    assert answer.usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens - 1


def test_streamed(tiny: Services, sdk: openai.OpenAI, expected: str) -> None:
    stream = sdk.chat.completions.create(
        model=tiny.client.model, messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **OPTIONS
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in ("length", "stop")
    assert chunks[-1].usage is not None


def test_async_and_at_once(tiny: Services, expected: str) -> None:
    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{tiny.gateway.url}/v1", api_key="none", timeout=PATIENCE) as sdk:

            async def whole() -> str | None:
                answer = await sdk.chat.completions.create(model=tiny.client.model, messages=MESSAGES, **OPTIONS)
                text: str | None = answer.choices[0].message.content
                return text

            async def streamed() -> str:
                stream = await sdk.chat.completions.create(
                    model=tiny.client.model, messages=MESSAGES, stream=True, **OPTIONS
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

            return list(await asyncio.gather(whole(), streamed(), whole(), streamed()))

    assert asyncio.run(ask()) == [expected] * 4


def test_completions(tiny: Services, sdk: openai.OpenAI) -> None:
    answers = [
        sdk.completions.create(model=tiny.client.model, prompt="Once upon a time", extra_body=body, **OPTIONS)
        for body in (NO_SPECULATION, {})
    ]
    assert answers[0].choices[0].text == answers[1].choices[0].text != ""


def test_curl(tiny: Services, expected: str) -> None:
    body = json.dumps({"model": tiny.client.model, "messages": MESSAGES, **OPTIONS})
    answer = json.loads(_curl(f"{tiny.gateway.url}/v1/chat/completions", body))
    assert answer["choices"][0]["message"]["content"] == expected
    lines = _curl(f"{tiny.gateway.url}/v1/chat/completions", json.dumps({**json.loads(body), "stream": True}))
    events = [line.removeprefix("data: ") for line in lines.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert text == expected


def test_curl_says_what_is_wrong(tiny: Services) -> None:
    body = json.dumps({"model": tiny.client.model, "messages": MESSAGES, "speculative": {"draft_tokens": 99}})
    error = json.loads(_curl(f"{tiny.gateway.url}/v1/chat/completions", body))["error"]
    assert "draft_tokens" in error["param"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("process", ["target", "gateway", "lookup", "model"])
def test_health_ready_and_metrics(tiny: Services, process: str) -> None:
    at = {"target": tiny.target, "gateway": tiny.gateway, **tiny.drafters}[process]
    for path in ("health", "ready", "metrics"):
        assert _curl(f"{at.url}/{path}")


def _curl(url: str, body: str | None = None) -> str:
    data = ["-H", "Content-Type: application/json", "--data-binary", "@-"] if body is not None else []
    command = ["curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", str(PATIENCE), *data, url]
    return subprocess.run(command, input=body, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
