"""The draft model on the torch engine: jobs on one loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from basics.metrics import Watched
from basics.names import MAX_CANDIDATES, MAX_DRAFT_TOKENS
from config.workers import DraftWorkerConfig
from draft_worker.engine import Draft
from draft_worker.metrics import DraftMetrics
from draft_worker.runtime.draft import draft_job
from engines.runtime.engine import TorchEngine
from engines.runtime.passes import PassReport
from protocol.messages import Capabilities, DraftRequest, Sampling


def load_drafter(config: DraftWorkerConfig, metrics: DraftMetrics, progress: Callable[[str], None]) -> TorchDrafter:
    """Raises engines.errors.ModelError."""
    from engines.torch.start import load_engine  # transformers takes seconds to import

    capabilities = Capabilities(
        rounds=[],
        strategies=[],
        max_candidates=MAX_CANDIDATES,
        max_draft_tokens=MAX_DRAFT_TOKENS,
        sampling=list(Sampling.model_fields),
        grammar_types=[],
        q=True,
        prediction=True,
    )

    def on_pass(report: PassReport) -> None:
        metrics.pass_done(report.sessions, report.tokens, report.forward_seconds)

    engine = load_engine(config, "draft", capabilities, on_pass, progress, _chains(config))
    return TorchDrafter(engine, config.q_top_k)


def _chains(config: DraftWorkerConfig) -> Literal["none", "plain", "compiled"]:
    from engines.torch.loader import pick_device

    on_cuda = pick_device(config.device).type == "cuda"
    if config.chains == "off" or config.batch_invariant or (config.chains == "auto" and not on_cuda):
        return "none"
    return "compiled" if on_cuda and config.compile else "plain"


class TorchDrafter:
    """A DraftEngine (draft_worker/engine.py)."""

    def __init__(self, engine: TorchEngine, q_top_k: int) -> None:
        self.info = engine.info
        self.tokenizer = engine.tokenizer
        self._engine = engine
        self._limits = engine.limits
        self._q_top_k = q_top_k

    async def draft(self, request: DraftRequest, ids: list[int], owner: int | None, deadline: float) -> Draft:
        grammar = await self._engine.grammars.state(request.grammar, owner, deadline)
        job = draft_job(request, ids, owner, self._limits, self._q_top_k, grammar)
        return await self._engine.loop.run(job, deadline)

    def disown(self, owner: int) -> None:
        self._engine.grammars.disown(owner)
        self._engine.loop.disown(owner)

    def gauges(self) -> Sequence[Watched]:
        return self._engine.gauges()

    def counters(self) -> Sequence[Watched]:
        return self._engine.counters()

    def close(self, patience: float) -> None:
        self._engine.loop.shutdown(patience)
        self._engine.grammars.close()
