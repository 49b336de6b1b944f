"""What the calls return, read from the API's own answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Stats:
    """How an answer came about. Of a list of prompts, which is one request, all answers have the request's stats.

    `draft_tokens` were proposed and `accepted_tokens` of them kept; `seconds` is the whole call, `first_token_seconds`
    the wait for the first text of a stream (None if the answer came in one piece).
    """

    prompt_tokens: int
    completion_tokens: int
    draft_tokens: int
    accepted_tokens: int
    seconds: float
    first_token_seconds: float | None = None

    @property
    def acceptance_rate(self) -> float:
        """Accepted of the drafted tokens, 0.0 to 1.0; 0.0 if nothing was drafted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def rounds(self) -> int:
        """Steps of the target: each brings one token of its own beside the accepted ones."""
        return max(1, self.completion_tokens - self.accepted_tokens)

    @property
    def tokens_per_round(self) -> float:
        """Tokens that a step of the target brought on average; 1.0 is plain decoding."""
        return self.completion_tokens / self.rounds

    @property
    def tokens_per_second(self) -> float:
        """Completion tokens by the whole call's time, the reading of the prompt included."""
        return self.completion_tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. `raw` is the API's whole answer (of a stream its last chunk), as documented in docs/api.md.

    `finish_reason` is "stop", "length" or "tool_calls". `seed`: with it, the same call gives the same text again.
    """

    text: str
    finish_reason: str
    stats: Stats
    seed: int
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return self.text


def stats_of(body: Mapping[str, Any], seconds: float, first: float | None = None) -> Stats:
    """From a completion's body, or the last chunk of a stream."""
    usage = body["usage"]
    details = usage["completion_tokens_details"]
    accepted = details["accepted_prediction_tokens"]
    return Stats(
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        draft_tokens=accepted + details["rejected_prediction_tokens"],
        accepted_tokens=accepted,
        seconds=seconds,
        first_token_seconds=first,
    )


def answers_of(body: Mapping[str, Any], seconds: float) -> list[Answer]:
    """All choices of a completion, chat or not."""
    stats = stats_of(body, seconds)
    answers = []
    for choice in body["choices"]:
        message = choice.get("message", {})
        answers.append(
            Answer(
                text=choice["text"] if "text" in choice else message["content"] or "",
                finish_reason=choice["finish_reason"],
                stats=stats,
                seed=body["tandem"]["seed"],
                reasoning=message.get("reasoning_content"),
                tool_calls=message.get("tool_calls") or [],
                raw=body,
            )
        )
    return answers
