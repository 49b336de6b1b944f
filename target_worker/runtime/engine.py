"""The target on the loop: a job for each call, whatever engine computes the logits."""

from __future__ import annotations

from collections.abc import Callable

from config.workers import TargetWorkerConfig
from engines.channel import Channel
from engines.runtime.engine import LoopModel
from engines.table import engine_of, load_engine
from protocol.messages import GenerateRequest, Grammar, VerifyRequest, VerifyResponse
from target_worker.engine import UNREAD_ROUNDS, capabilities
from target_worker.metrics import TargetMetrics
from target_worker.runtime.generate import generate_job
from target_worker.runtime.verify import verify_job
from target_worker.strategies import STRATEGIES

_GATHER_MS = 50
"""Some twenty rounds a second: no reader sees it, and a token of a small model on llama.cpp takes a sixth of that."""


def load_target(
    config: TargetWorkerConfig,
    metrics: TargetMetrics,
    progress: Callable[[str], None],
    on_death: Callable[[str], None],
) -> LoopTarget:
    """`on_death(reason)` is called if the loop failed. Raises engines.errors.ModelError."""
    able = capabilities(config, list(STRATEGIES))
    model = load_engine(config, "target", able, metrics.pass_done, on_death, progress)
    gather_ms = config.gather_ms
    if gather_ms is None:
        gather_ms = _GATHER_MS if engine_of(config) == "llama_cpp" else 0
    return LoopTarget(model, config.stall_timeout_ms / 1000, config.verbose, gather_ms / 1000)


class LoopTarget:
    """A TargetEngine (target_worker/engine.py)."""

    def __init__(
        self, model: LoopModel, stall_seconds: float, log_decisions: bool, gather_seconds: float = 0.0
    ) -> None:
        self.model = model
        self._gather_seconds = gather_seconds
        self._stall_seconds = stall_seconds
        self._log_decisions = log_decisions

    async def verify(
        self, request: VerifyRequest, ids: list[int], owner: int | None, deadline: float
    ) -> VerifyResponse:
        grammar = await self.model.grammars.state(request.grammar, owner, deadline)
        job = verify_job(request, ids, owner, self.model.limits, self._log_decisions, grammar)
        return await self.model.loop.run(job, deadline)

    async def check_grammar(self, grammar: Grammar) -> None:
        await self.model.grammars.compile(grammar)

    def rounds(self) -> Channel[VerifyResponse]:
        return Channel(UNREAD_ROUNDS, self.model.loop.wake)

    async def generate(
        self,
        request: GenerateRequest,
        ids: list[int],
        owner: int | None,
        rounds: Channel[VerifyResponse],
        emitted: list[int],
    ) -> None:
        grammar = await self.model.grammars.state(request.grammar, owner)
        job = generate_job(
            request,
            ids,
            owner,
            self.model.limits,
            rounds,
            emitted,
            self._stall_seconds,
            grammar,
            self._gather_seconds,
        )
        await self.model.loop.run(job, float("inf"))
