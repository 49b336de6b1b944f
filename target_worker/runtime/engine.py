"""The target on the loop: a job for each call, whatever engine computes the logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from basics.metrics import Watched
from config.workers import TargetWorkerConfig
from engines.channel import Channel
from engines.runtime.engine import LoopEngine
from engines.runtime.passes import PassReport
from engines.table import load_engine
from protocol.messages import GenerateRequest, Grammar, VerifyRequest, VerifyResponse
from target_worker.engine import UNREAD_ROUNDS, capabilities
from target_worker.metrics import TargetMetrics
from target_worker.runtime.generate import generate_job
from target_worker.runtime.verify import verify_job
from target_worker.strategies import STRATEGIES


def load_target(
    config: TargetWorkerConfig,
    metrics: TargetMetrics,
    progress: Callable[[str], None],
    on_death: Callable[[str], None],
) -> LoopTarget:
    """`on_death(reason)` is called if the loop failed. Raises engines.errors.ModelError."""

    def on_pass(report: PassReport) -> None:
        metrics.pass_done(report.sessions, report.tokens, report.forward_seconds)

    engine = load_engine(config, "target", capabilities(config, list(STRATEGIES)), on_pass, on_death, progress)
    return LoopTarget(engine, config.stall_timeout_ms / 1000, config.verbose)


class LoopTarget:
    """A TargetEngine (target_worker/engine.py)."""

    def __init__(self, engine: LoopEngine, stall_seconds: float, log_decisions: bool) -> None:
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
        return Channel(UNREAD_ROUNDS, self._loop.wake)

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
        self._engine.disown(owner)

    def gauges(self) -> Sequence[Watched]:
        return self._engine.gauges()

    def counters(self) -> Sequence[Watched]:
        return self._engine.counters()

    def close(self, patience: float) -> None:
        self._engine.close(patience)
