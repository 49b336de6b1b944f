"""The target on the torch engine: jobs on one loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from basics.metrics import Watched
from basics.names import MAX_DRAFT_TOKENS
from config.workers import TargetWorkerConfig
from engines.channel import Channel
from engines.runtime.engine import TorchEngine
from engines.runtime.passes import PassReport
from protocol.messages import (
    MAX_LOGPROBS,
    Capabilities,
    GenerateRequest,
    Grammar,
    Sampling,
    VerifyRequest,
    VerifyResponse,
)
from target_worker.metrics import TargetMetrics
from target_worker.runtime.generate import generate_job
from target_worker.runtime.verify import verify_job
from target_worker.strategies import STRATEGIES

_UNREAD_ROUNDS = 32
"""Rounds a stream may be ahead of its reader before its job waits."""


def load_target(config: TargetWorkerConfig, metrics: TargetMetrics, progress: Callable[[str], None]) -> TorchTarget:
    """Raises engines.errors.ModelError."""
    from engines.torch.start import load_engine  # transformers takes seconds to import

    capabilities = Capabilities(
        rounds=["gateway"],
        strategies=list(STRATEGIES),
        default_strategy=config.strategy,
        max_candidates=config.max_candidates,
        max_draft_tokens=MAX_DRAFT_TOKENS,
        max_logprobs=MAX_LOGPROBS,
        sampling=list(Sampling.model_fields),
        grammar_types=[],
    )

    def on_pass(report: PassReport) -> None:
        metrics.pass_done(report.sessions, report.tokens, report.forward_seconds)

    engine = load_engine(config, "target", capabilities, on_pass, progress)
    return TorchTarget(engine, config.stall_timeout_ms / 1000, config.verbose)


class TorchTarget:
    """A TargetEngine (target_worker/engine.py)."""

    def __init__(self, engine: TorchEngine, stall_seconds: float, log_decisions: bool) -> None:
        self.info = engine.info
        self.tokenizer = engine.tokenizer
        self._engine = engine
        self._loop = engine.loop
        self._grammars = engine.grammars
        self._limits = engine.limits
        self._stall_seconds = stall_seconds
        self._log_decisions = log_decisions

    async def verify(
        self, request: VerifyRequest, ids: list[int], owner: int | None, deadline: float
    ) -> VerifyResponse:
        grammar = await self._grammars.state(request.grammar, owner, deadline)
        job = verify_job(request, ids, owner, self._limits, self._log_decisions, grammar)
        return await self._loop.run(job, deadline)

    async def check_grammar(self, grammar: Grammar) -> None:
        await self._grammars.compile(grammar)

    def rounds(self) -> Channel[VerifyResponse]:
        return Channel(_UNREAD_ROUNDS, self._loop.wake)

    async def generate(
        self,
        request: GenerateRequest,
        ids: list[int],
        owner: int | None,
        rounds: Channel[VerifyResponse],
        emitted: list[int],
    ) -> None:
        grammar = await self._grammars.state(request.grammar, owner)
        job = generate_job(request, ids, owner, self._limits, rounds, emitted, self._stall_seconds, grammar)
        await self._loop.run(job, float("inf"))

    def disown(self, owner: int) -> None:
        self._grammars.disown(owner)
        self._loop.disown(owner)

    def gauges(self) -> Sequence[Watched]:
        return self._engine.gauges()

    def counters(self) -> Sequence[Watched]:
        return self._engine.counters()

    def close(self, patience: float) -> None:
        self._loop.shutdown(patience)
        self._grammars.close()
