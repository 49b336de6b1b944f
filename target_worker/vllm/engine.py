"""The target on vLLM: what reaches it becomes requests of one token, or for plain decoding of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from config.workers import TargetWorkerConfig
from engines.channel import Channel
from engines.drawing import RequestSampling
from engines.vllm.start import VllmModel, load_model
from protocol.messages import MAX_LOGPROBS, GenerateRequest, Grammar, VerifyRequest, VerifyResponse
from target_worker.engine import UNREAD_ROUNDS, capabilities
from target_worker.metrics import TargetMetrics
from target_worker.strategies import STRATEGIES
from target_worker.vllm.drafting import TargetRounds
from target_worker.vllm.generate import Decoding
from target_worker.vllm.processor import CLASS
from target_worker.vllm.verify import VllmVerification

_STRATEGIES = [name for name, strategy in STRATEGIES.items() if not strategy.emits_rejected]


def load_target(
    config: TargetWorkerConfig,
    metrics: TargetMetrics,
    progress: Callable[[str], None],
    on_death: Callable[[str], None],
) -> VllmTarget:
    """`on_death(reason)` is called if vLLM's process ended. Raises engines.errors.ModelError."""
    ours: dict[str, Any] = {"logprobs_mode": "raw_logprobs", "max_logprobs": MAX_LOGPROBS}
    able = capabilities(config, _STRATEGIES)
    drafting: TargetRounds | None = None
    if config.draft_workers:
        drafting = TargetRounds(config.most_drafted)
        ours |= drafting.arguments(config)
    else:
        ours["logits_processors"] = [CLASS]
    try:
        started = drafting.started if drafting is not None else None
        model = load_model(config, "target", able, ours, metrics.pass_done, on_death, progress, started)
    except BaseException:
        if drafting is not None:
            drafting.close()
        raise
    if drafting is not None:
        model.resources.callback(drafting.close)
    return VllmTarget(model, config.stall_timeout_ms / 1000, config.verbose, drafting)


class VllmTarget:
    """A TargetEngine (target_worker/engine.py)."""

    def __init__(
        self, model: VllmModel, stall_seconds: float, log_decisions: bool, drafting: TargetRounds | None = None
    ) -> None:
        """With `drafting`, vLLM drafts itself for the requests that ask for it and that it can do so for."""
        self.model = model
        self._drafting = drafting
        self._stall_seconds = stall_seconds
        self._log_decisions = log_decisions

    async def verify(
        self, request: VerifyRequest, ids: list[int], owner: int | None, deadline: float
    ) -> VerifyResponse:
        grammar = await self.model.grammars.state(request.grammar, owner, deadline)
        drawing = RequestSampling(request, ids, self.model.limits, grammar)
        verification = VllmVerification(self.model.engine, request, drawing, self._log_decisions)
        return await self.model.engine.run(verification.response(), deadline)

    async def check_grammar(self, grammar: Grammar) -> None:
        await self.model.grammars.compile(grammar)

    def rounds(self) -> Channel[VerifyResponse]:
        return Channel(UNREAD_ROUNDS, lambda: None)

    async def generate(
        self,
        request: GenerateRequest,
        ids: list[int],
        owner: int | None,
        rounds: Channel[VerifyResponse],
        emitted: list[int],
    ) -> None:
        grammar = await self.model.grammars.state(request.grammar, owner)
        drawing = RequestSampling(request, ids, self.model.limits, grammar)
        decoding = Decoding(self.model.engine, request, drawing, rounds, emitted, self._stall_seconds)
        if grammar is not None:
            work = decoding.step_by_step()
        elif self._drafting is not None and (draft_tokens := self._drafting.draft_tokens(request)):
            work = decoding.with_drafts(self._drafting.reports, draft_tokens)
        else:
            work = decoding.stream()
        await self.model.engine.run(work)
