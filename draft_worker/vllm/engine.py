"""The draft model on vLLM: a request for the chain, one for each further candidate's rest."""

from __future__ import annotations

from collections.abc import Callable

from config.workers import DraftWorkerConfig
from draft_worker.engine import Drafted, SharedNoise, capabilities
from draft_worker.metrics import DraftMetrics
from draft_worker.vllm import rows
from draft_worker.vllm.draft import VllmDraft
from engines.drawing import RequestSampling
from engines.vllm.processor import SamplingProcessor
from engines.vllm.start import VllmModel, load_model
from protocol.messages import DraftRequest

_PROCESSOR = f"{__name__}:DraftProcessor"


class DraftProcessor(SamplingProcessor):
    """Inside vLLM: a row of logits says which token was drawn, and how (draft_worker/vllm/rows.py)."""

    write = staticmethod(rows.write)
    write_failure = staticmethod(rows.write_failure)


def load_drafter(
    config: DraftWorkerConfig,
    metrics: DraftMetrics,
    progress: Callable[[str], None],
    on_death: Callable[[str], None],
) -> VllmDrafter:
    """`on_death(reason)` is called if vLLM's process ended. Raises engines.errors.ModelError."""
    ours = {
        "logits_processors": [_PROCESSOR],
        "logprobs_mode": "processed_logits",
        "max_logprobs": max(2, config.q_top_k),
    }
    model = load_model(config, "draft", capabilities(), ours, metrics.pass_done, on_death, progress)
    return VllmDrafter(model, config.q_top_k)


class VllmDrafter:
    """A DraftEngine (draft_worker/engine.py)."""

    shares_noise = False

    def __init__(self, model: VllmModel, q_top_k: int) -> None:
        self.model = model
        vocabulary = model.info.vocabulary
        self._q_top_k = min(q_top_k, vocabulary.logits_size) if vocabulary is not None else q_top_k

    async def draft(
        self,
        request: DraftRequest,
        ids: list[int],
        owner: int | None,
        deadline: float,
        shared: SharedNoise | None = None,
    ) -> Drafted:
        assert shared is None, "shares_noise is false"
        grammar = await self.model.grammars.state(request.grammar, owner, deadline)
        drawing = RequestSampling(request, ids, self.model.limits, grammar)
        drafting = VllmDraft(self.model.engine, request, drawing, self._q_top_k)
        return await self.model.engine.run(drafting.draft(), deadline)
