"""The draft model on the loop: a job for each draft, whatever engine computes the logits."""

from __future__ import annotations

from collections.abc import Callable

from config.workers import DraftWorkerConfig
from draft_worker.engine import Drafted, SharedNoise, capabilities
from draft_worker.metrics import DraftMetrics
from draft_worker.outcomes import Ahead
from draft_worker.runtime.ahead import ahead_job
from draft_worker.runtime.draft import draft_job
from engines.runtime.engine import LoopModel
from engines.table import load_engine
from protocol.messages import DraftRequest


def load_drafter(
    config: DraftWorkerConfig,
    metrics: DraftMetrics,
    progress: Callable[[str], None],
    on_death: Callable[[str], None],
) -> LoopDrafter:
    """`on_death(reason)` is called if the loop failed. Raises engines.errors.ModelError."""
    model = load_engine(config, "draft", capabilities(lookahead=True), metrics.pass_done, on_death, progress)
    return LoopDrafter(model, config.q_top_k)


class LoopDrafter:
    """A DraftEngine (draft_worker/engine.py)."""

    shares_noise = True

    def __init__(self, model: LoopModel, q_top_k: int) -> None:
        self.model = model
        self._q_top_k = q_top_k

    async def draft(
        self,
        request: DraftRequest,
        ids: list[int],
        owner: int | None,
        deadline: float,
        shared: SharedNoise | None = None,
    ) -> Drafted:
        grammar = await self.model.grammars.state(request.grammar, owner, deadline)
        job = draft_job(request, ids, owner, self.model.limits, self._q_top_k, grammar, shared)
        return await self.model.loop.run(job, deadline)

    async def look_ahead(
        self, request: DraftRequest, ids: list[int], owner: int, ahead: Ahead, deadline: float
    ) -> None:
        grammar = await self.model.grammars.state(request.grammar, owner, deadline)
        job = ahead_job(
            request, ids, owner, self.model.limits, self._q_top_k, ahead, grammar, self.model.loop.longest_apart
        )
        await self.model.loop.run(job, deadline)

    @property
    def chains(self) -> bool:
        return self.model.loop.draws_chains

    @property
    def abreast(self) -> int:
        return 1 + self.model.loop.chains_apart

    @property
    def calls(self) -> int:
        return self.model.loop.running + self.model.loop.waiting
