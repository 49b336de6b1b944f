"""The stream of rounds: what generation consumes, whoever drives the rounds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from basics.names import Strategy
from protocol.messages import Grammar, Sampling, StopReason, TokenLogprob


@dataclass(frozen=True, slots=True)
class RoundTimings:
    """Milliseconds. `network` is what the round trips cost beyond the workers' own totals."""

    draft: float = 0.0
    verify_forward: float = 0.0
    sample: float = 0.0
    queue: float = 0.0
    network: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Round:
    """Tokens that one round added. `num_drafted` is 0 for plain decoding; `num_accepted` <= len(token_ids).

    `cached_tokens`: context tokens that the target did not compute again; null where it did not say.
    """

    token_ids: list[int]
    num_drafted: int
    num_accepted: int
    logprobs: list[TokenLogprob] | None
    stop_reason: StopReason | None
    stop_token_id: int | None
    lossless: bool
    source: str | None = None
    num_candidates: int = 0
    cached_tokens: int | None = None
    timings: RoundTimings = field(default_factory=RoundTimings)


@dataclass(frozen=True, slots=True)
class Speculation:
    """The resolved `speculative` block of one request."""

    enabled: bool
    draft_tokens: int
    draft_model: str | None
    num_candidates: int
    candidate_temperature: float | None
    candidate_top_p: float | None
    strategy: Strategy
    acceptance_threshold: float
    max_speculation_depth: int
    adaptive: bool


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One choice to generate. `sampling.seed` is always set; `prompt` must not be empty."""

    request_id: str
    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    choice_index: int
    speculation: Speculation
    logprobs: int | None = None
    grammar: Grammar | None = None
    prediction: list[int] | None = None
    log_decisions: bool = False
    cache_salt: str | None = None
    traceparent: str | None = None


class RoundSource(Protocol):
    def rounds(self, request: GenerationRequest) -> AsyncIterator[Round]:
        """Rounds until the target stops or `max_tokens` are out.

        Closing the iterator (aclose, or cancelling its consumer) stops generation and frees both sessions.
        Raises server.errors.NoTarget where no target can serve it, before the first round or in mid-stream.
        """
        ...
