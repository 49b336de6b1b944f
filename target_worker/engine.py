"""The seam between the target service and whatever runs its model: it lies above logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from basics.names import MAX_DRAFT_TOKENS, Strategy
from config.workers import TargetWorkerConfig
from engines.channel import Channel
from engines.running_model import RunningModel
from protocol.messages import MAX_LOGPROBS, GenerateRequest, Grammar, Sampling, VerifyRequest, VerifyResponse
from protocol.worker_info import Capabilities
from target_worker.strategies import STRATEGIES
from worker.sessions import MOST_HELD

UNREAD_ROUNDS = 32
"""Rounds a stream may be ahead of its reader before it waits."""


def capabilities(config: TargetWorkerConfig, strategies: Sequence[Strategy]) -> Capabilities:
    """What a target on this engine can do; the engine that loads a model adds the grammars that it honours.

    One that `follows` another waits in the service: the engine hears of it once the verdict before it is known.
    """
    return Capabilities(
        rounds=["gateway"],
        strategies=list(strategies),
        strategy_facts=[STRATEGIES[name].facts(name) for name in strategies],
        default_strategy=config.strategy,
        max_candidates=config.max_candidates,
        max_draft_tokens=MAX_DRAFT_TOKENS,
        max_logprobs=MAX_LOGPROBS,
        sampling=list(Sampling.model_fields),
        grammar_types=[],
        follows=True,
        holds=MOST_HELD,
    )


class TargetEngine(Protocol):
    """A target model with its memory. Requests that reach it are checked (target_worker/checks.py).

    `ids` is the whole context of a request and does not change while it is served; `owner` is the session's serial,
    None if the request belongs to no session. Cancelling a call frees what it holds before it returns.
    """

    @property
    def model(self) -> RunningModel:
        """What the service needs from the model apart from tokens."""
        ...

    async def verify(
        self, request: VerifyRequest, ids: list[int], owner: int | None, deadline: float
    ) -> VerifyResponse:
        """One round. `deadline` is on time.monotonic's clock. Raises WireError."""
        ...

    async def check_grammar(self, grammar: Grammar) -> None:
        """Raises BadRequest with the reason if this grammar of a supported type can't be honoured; QueueFull."""
        ...

    def rounds(self) -> Channel[VerifyResponse]:
        """A channel for `generate`."""
        ...

    async def generate(
        self,
        request: GenerateRequest,
        ids: list[int],
        owner: int | None,
        rounds: Channel[VerifyResponse],
        emitted: list[int],
    ) -> None:
        """Put rounds into `rounds` until the model stops, and their tokens into `emitted`. Raises WireError."""
        ...
