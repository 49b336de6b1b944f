"""The draft model on vLLM: a request for the chain, one for each further candidate's rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from basics.metrics import Watched
from config.workers import DraftWorkerConfig
from draft_worker.engine import Drafted, capabilities
from draft_worker.metrics import DraftMetrics
from draft_worker.vllm import rows
from draft_worker.vllm.draft import VllmDraft
from engines.drawing import RequestSampling
from engines.sampling.batch import Draws
from engines.sampling.rows import SamplingRow
from engines.vllm.processor import SamplingProcessor
from engines.vllm.start import VllmModel, load_model
from protocol.messages import DraftRequest

_PROCESSOR = f"{__name__}:DraftProcessor"


class DraftProcessor(SamplingProcessor):
    """Inside vLLM: a row of logits says which token was drawn, and how (draft_worker/vllm/rows.py)."""

    def write(self, logits: Tensor, draws: Draws, asked: dict[str, Any], row: SamplingRow) -> None:
        rows.write(logits, draws, asked)

    def write_failure(self, logits: Tensor) -> None:
        rows.write_failure(logits)


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

    def __init__(self, model: VllmModel, q_top_k: int) -> None:
        self.info = model.info
        self.tokenizer = model.tokenizer
        self.grammars = model.grammars
        self._model = model
        vocabulary = model.info.vocabulary
        self._q_top_k = min(q_top_k, vocabulary.logits_size) if vocabulary is not None else q_top_k

    async def draft(self, request: DraftRequest, ids: list[int], owner: int | None, deadline: float) -> Drafted:
        grammar = await self._model.grammars.state(request.grammar, owner, deadline)
        drawing = RequestSampling(request, ids, self._model.limits, grammar)
        drafting = VllmDraft(self._model.engine, request, drawing, self._q_top_k)
        return await self._model.engine.run(drafting.draft(), deadline)

    def disown(self, owner: int) -> None:
        self._model.grammars.disown(owner)

    def gauges(self) -> Sequence[Watched]:
        return self._model.gauges()

    def counters(self) -> Sequence[Watched]:
        return []

    def close(self, patience: float) -> None:
        self._model.close(patience)
