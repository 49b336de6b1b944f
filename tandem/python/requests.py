"""From a call's arguments to a request of the API, and from its errors to exceptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tandem.python.errors import RequestFailed

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

_SPECULATIVE = frozenset(
    {
        "draft_tokens",
        "draft_model",
        "num_candidates",
        "candidate_temperature",
        "candidate_top_p",
        "strategy",
        "acceptance_threshold",
        "max_speculation_depth",
        "adaptive_speculation",
        "log_decisions",
    }
)
"""Fields of the API's `speculative` block, which a call may give by themselves."""
_CALLS_OWN = {"model": "the one that is loaded is used", "stream": "that is what stream() is for"}


def body_of(content: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a request; `options` are the API's fields (docs/api.md). Raises TypeError."""
    fields = dict(options)
    for name, why in _CALLS_OWN.items():
        if name in fields:
            raise TypeError(f"{name}: can't be given, {why}")
    given = fields.pop("speculative", None)
    if given is not None and not isinstance(given, bool | Mapping):
        raise TypeError(f"speculative: must be True, False or a mapping, not {type(given).__name__}")
    block: dict[str, Any] = {"enabled": given} if isinstance(given, bool) else dict(given or {})
    for name in _SPECULATIVE & fields.keys():
        if name in block:
            raise TypeError(f"{name}: is given twice, by itself and within speculative")
        block[name] = fields.pop(name)
    if isinstance(fields.get("prediction"), str):
        fields["prediction"] = {"type": "content", "content": fields["prediction"]}
    return {**content, **fields, **({"speculative": block} if block else {})}


def conversation(prompt: str | Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """The endpoint and content of what `stream` is given: text to go on with, token ids, or messages to answer."""
    if isinstance(prompt, str):
        return COMPLETIONS, {"prompt": prompt}
    content = listed("prompt", prompt, "a text, token ids or messages")
    if content and isinstance(content[0], int):
        return COMPLETIONS, {"prompt": content}
    if content and isinstance(content[0], str):
        raise TypeError("prompt: a stream has one; give a list of prompts to generate()")
    return CHAT, {"messages": content}


def listed(name: str, given: Any, wanted: str) -> list[Any]:
    """What is given as a list. Raises TypeError for what is none: an iterator, an array, a mapping."""
    if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray):
        raise TypeError(f"{name}: must be {wanted}, as a list, not {type(given).__name__}")
    return list(given)


def messages_of(messages: str | Sequence[Mapping[str, Any]]) -> list[Any]:
    """A string is one message of the user's."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return listed("messages", messages, "a text or messages")


def failure(status: int, body: Any) -> RequestFailed:
    """The exception that an error of the API means."""
    detail = body.get("error") if isinstance(body, dict) else None
    if not isinstance(detail, dict):
        return RequestFailed(status, f"status {status}: {str(body)[:300]}")
    return RequestFailed(status, str(detail.get("message")), detail.get("code"), detail.get("param"))
