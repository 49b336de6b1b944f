"""What real processes write down while they serve: no prompt, no text, no key, no token. Wrong keys open nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.patience import PATIENCE
from testing.processes import Stack

KEYS = ("key-of-alice-7Hq2", "key-of-bob-9Zw4")
TOKEN = "token-of-the-workers-5Xk8"
PROMPT = "unmistakable-prompt-3Vb6"
LONG = {"max_tokens": 12, "temperature": 0.5, "seed": 3}


@pytest.fixture(scope="module")
def stack(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("secrets")
    keys = folder / "keys"
    keys.write_text(f"# clients\n{KEYS[1]}\n")
    with Stack(folder / "logs") as stack:
        worker: dict[str, Any] = {"worker_token": TOKEN, "log_level": "debug", "threads": 1}
        target = stack.target(tiny_model, slots=2, **worker)
        draft = stack.draft("lookup", **worker)
        stack.gateway(
            [target.url], [draft.url], worker_token=TOKEN, api_keys=[KEYS[0]], api_key_file=keys, log_level="debug"
        )
        stack.wait_ready()
        yield stack


def post(stack: Stack, body: dict[str, Any] | str, key: str | None = KEYS[0]) -> httpx.Response:
    """A chat request to the gateway, which was started last."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key is not None else {})
    content = body if isinstance(body, str) else json.dumps(body)
    url = f"{stack.processes[-1].url}/v1/chat/completions"
    return httpx.post(url, content=content, headers=headers, timeout=PATIENCE, trust_env=False)


def test_keys_and_token(stack: Stack) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], **LONG}
    answers = [post(stack, body, key).status_code for key in (*KEYS, None, "wrong", KEYS[0][:-1], TOKEN)]
    assert answers == [200, 200, 401, 401, 401, 401]
    for worker in stack.processes[:-1]:
        for key, status in ((None, 401), (KEYS[0], 401), (TOKEN, 200)):
            headers = {"authorization": f"Bearer {key}"} if key is not None else {}
            assert (
                httpx.get(f"{worker.url}/v1/model", headers=headers, trust_env=False, timeout=PATIENCE).status_code
                == status
            )


def test_logs_hold_no_secrets(stack: Stack) -> None:
    """At log level debug, through requests that succeed and that fail in every part."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], **LONG}
    text = post(stack, body).json()["choices"][0]["message"]["content"]
    assert text
    assert post(stack, {**body, "stream": True, "logprobs": True}).status_code == 200
    refused = [
        {**body, "messages": [{"role": PROMPT, "content": PROMPT}]},
        {**body, "messages": [{"role": "user", "content": PROMPT * 400}]},
        {**body, "temperature": PROMPT},
        {**body, "model": PROMPT},
        {**body, PROMPT: 1},
        {**body, "logit_bias": {"5000": 1}},
        json.dumps(body)[:-1],
    ]
    assert {post(stack, one).status_code for one in refused} <= {400, 404}
    for process in stack.processes[:-1]:
        headers = {"authorization": f"Bearer {TOKEN}"}
        for path in ("draft", "verify", f"sessions/{PROMPT}"):
            answer = httpx.post(
                f"{process.url}/v1/{path}",
                json={"session_id": PROMPT},
                headers=headers,
                trust_env=False,
                timeout=PATIENCE,
            )
            assert 400 <= answer.status_code < 500
    stack.close()  # what they say as they end counts too
    logs = {path.name: path.read_text() for path in stack.logs.glob("*.log")}
    assert len(logs) == 3
    for name, log in logs.items():
        assert "info" in log, f"{name} is not the log"
        for secret in (*KEYS, TOKEN, PROMPT, text):
            assert secret not in log, f"{name} holds what nobody is to read"
