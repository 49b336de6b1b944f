"""The draft model on the loop: a job for each draft, whatever engine computes the logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from basics.metrics import Watched
from config.workers import DraftWorkerConfig
from draft_worker.engine import Drafted, capabilities
from draft_worker.metrics import DraftMetrics
from draft_worker.outcomes import Ahead
from draft_worker.runtime.ahead import ahead_job
from draft_worker.runtime.draft import draft_job
from engines.runtime.engine import LoopEngine
from engines.runtime.passes import PassReport
from engines.table import load_engine
from protocol.messages import DraftRequest


def load_drafter(
    config: DraftWorkerConfig,
    metrics: DraftMetrics,
    progress: Callable[[str], None],
    on_death: Callable[[str], None],
) -> LoopDrafter:
    """`on_death(reason)` is called if the loop failed. Raises engines.errors.ModelError."""

    def on_pass(report: PassReport) -> None:
        metrics.pass_done(report.sessions, report.tokens, report.forward_seconds)

    engine = load_engine(config, "draft", capabilities(lookahead=True), on_pass, on_death, progress)
    return LoopDrafter(engine, config.q_top_k)


class LoopDrafter:
    """A DraftEngine (draft_worker/engine.py)."""

    def __init__(self, engine: LoopEngine, q_top_k: int) -> None:
        self.info = engine.info
        self.tokenizer = engine.tokenizer
        self.grammars = engine.grammars
        self._engine = engine
        self._limits = engine.limits
        self._q_top_k = q_top_k

    async def draft(self, request: DraftRequest, ids: list[int], owner: int | None, deadline: float) -> Drafted:
        grammar = await self._engine.grammars.state(request.grammar, owner, deadline)
        job = draft_job(request, ids, owner, self._limits, self._q_top_k, grammar)
        return await self._engine.loop.run(job, deadline)

    async def look_ahead(
        self, request: DraftRequest, ids: list[int], owner: int, ahead: Ahead, deadline: float
    ) -> None:
        grammar = await self._engine.grammars.state(request.grammar, owner, deadline)
        job = ahead_job(request, ids, owner, self._limits, self._q_top_k, ahead, grammar)
        await self._engine.loop.run(job, deadline)

    @property
    def calls(self) -> int:
        return self._engine.loop.running + self._engine.loop.waiting

    def disown(self, owner: int) -> None:
        self._engine.disown(owner)

    def gauges(self) -> Sequence[Watched]:
        return self._engine.gauges()

    def counters(self) -> Sequence[Watched]:
        return self._engine.counters()

    def close(self, patience: float) -> None:
        self._engine.close(patience)
