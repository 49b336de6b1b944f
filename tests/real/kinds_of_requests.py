"""Every kind of request once, and what its own answer says of it: what metrics are compared with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from testing.patience import PATIENCE

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
GAMMA = 4

_HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me a story."}]}
_STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {**_HELLO, "cache_salt": "asked twice"}),
    "plain": (CHAT, {**_HELLO, "speculative": {"enabled": False}}),
    "streamed": (CHAT, {**_HELLO, **_STREAM}),
    "three choices": (CHAT, {**_HELLO, "n": 3}),
    "three choices, streamed": (CHAT, {**_HELLO, **_STREAM, "n": 3}),
    # Remembered from "chat", so that whole drafts are accepted and the stop string ends the text within one.
    "a stop string": (CHAT, {**_HELLO, "cache_salt": "asked twice", "stop": "STOP"}),
    "a grammar": (CHAT, {**_HELLO, "response_format": {"type": "json_object"}}),
    "log-probabilities": (CHAT, {**_HELLO, "logprobs": True, "top_logprobs": 2}),
    "a chat of several turns": (
        CHAT,
        {
            "messages": [
                *_HELLO["messages"],
                {"role": "assistant", "content": "No."},
                {"role": "user", "content": "Do."},
            ]
        },
    ),
    "a completion": (TEXT, {"prompt": "Once upon a time"}),
    "completions of two prompts": (TEXT, {"prompt": ["Once", "Upon a time"], "n": 2}),
    "a completion of token ids, streamed": (TEXT, {**_STREAM, "prompt": [5, 6, 7, 8]}),
    "a response": (RESPONSES, {"input": "Tell me a story."}),
    "a response, streamed": (RESPONSES, {"input": "Tell me a story.", "stream": True}),
}


@dataclass(frozen=True)
class Told:
    """What one answer says of itself. `endings` are the finish reasons of its choices, `prompt_tokens` are counted for
    every choice again."""

    path: str
    tokens: int
    prompt_tokens: int
    accepted: int
    drafted: int
    endings: list[str]
    speculation: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    def stop_string(self) -> str:
        """Two characters that come about the middle of the text, and not before."""
        pairs = [self.text[at : at + 2] for at in range(len(self.text) // 2, len(self.text) - 1)]
        return next(pair for pair in pairs if "\ufffd" not in pair and self.text.count(pair) == 1)


def ask(url: str, model: str, path: str, body: Mapping[str, Any]) -> Told:
    fields: dict[str, Any] = {
        "model": model,
        "max_output_tokens" if path == RESPONSES else "max_tokens": 24,
        "temperature": 0.2,
        "seed": 7,
        "cache_salt": str(body),  # what the draft worker remembers of one kind is not for the next
        "speculative": {"draft_tokens": GAMMA, "adaptive_speculation": False},
        **body,
    }
    answer = httpx.post(f"{url}{path}", json=fields, timeout=PATIENCE, trust_env=False)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    parts = [json.loads(line) for line in lines if line != "[DONE]"] if body.get("stream") else [answer.json()]
    if path == RESPONSES:
        return _told_of_response(parts[-1].get("response", parts[-1]))
    [usage] = [part["usage"] for part in parts if part.get("usage")]
    endings = [c["finish_reason"] for part in parts for c in part["choices"] if c["finish_reason"]]
    details = usage["completion_tokens_details"]
    accepted, rejected = details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]
    return Told(
        path,
        usage["completion_tokens"],
        usage["prompt_tokens"] * body.get("n", 1),
        accepted,
        accepted + rejected,
        endings,
        parts[-1].get("metrics", {}).get("speculative_decoding") or {},
        parts[0]["choices"][0].get("message", {}).get("content") or "",
    )


def _told_of_response(response: Mapping[str, Any]) -> Told:
    usage, details = response["usage"], response["usage"]["output_tokens_details"]
    accepted = details["accepted_prediction_tokens"]
    return Told(
        RESPONSES,
        usage["output_tokens"],
        usage["input_tokens"],
        accepted,
        accepted + details["rejected_prediction_tokens"],
        ["stop" if response["status"] == "completed" else "length"],
        response.get("metrics", {}).get("speculative_decoding") or {},
    )
