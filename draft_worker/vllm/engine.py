"""The draft model on vLLM: a request for the chain, one for each further candidate's rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from config.workers import DraftWorkerConfig
from draft_worker.engine import Drafted, SharedNoise, capabilities
from draft_worker.metrics import DraftMetrics
from draft_worker.outcomes import Ahead
from draft_worker.vllm.ahead import look_ahead
from draft_worker.vllm.draft import VllmDraft
from engines.drawing import RequestSampling
from engines.vllm.start import VllmModel, load_model
from protocol.errors import QueueFull
from protocol.messages import DraftRequest

_PROCESSOR = "draft_worker.vllm.processor:DraftProcessor"
"""By name: it is for vLLM's own process, and imports vLLM."""


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
    model = load_model(config, "draft", capabilities(lookahead=True), ours, metrics.pass_done, on_death, progress)
    return VllmDrafter(model, config.q_top_k)


class VllmDrafter:
    """A DraftEngine that LooksAhead (draft_worker/engine.py)."""

    shares_noise = False
    chains = True
    """One request draws all tokens of a draft."""
    abreast = 1

    def __init__(self, model: VllmModel, q_top_k: int) -> None:
        self.model = model
        vocabulary = model.info.vocabulary
        self._q_top_k = min(q_top_k, vocabulary.logits_size) if vocabulary is not None else q_top_k
        self.calls = 0
        self._ahead: set[asyncio.Task[None]] = set()

    async def draft(
        self,
        request: DraftRequest,
        ids: list[int],
        owner: int | None,
        deadline: float,
        shared: SharedNoise | None = None,
    ) -> Drafted:
        assert shared is None, "shares_noise is false"
        self.calls += 1
        try:
            for task in self._ahead:  # vLLM has no idle work: its steps would be the longer for them
                task.cancel()
            grammar = await self.model.grammars.state(request.grammar, owner, deadline)
            drawing = RequestSampling(request, ids, self.model.limits, grammar)
            drafting = VllmDraft(self.model.engine, request, drawing, self._q_top_k)
            return await self.model.engine.run(drafting.draft(), deadline)
        finally:
            self.calls -= 1

    async def look_ahead(
        self, request: DraftRequest, ids: list[int], owner: int, ahead: Ahead, deadline: float
    ) -> None:
        engine = self.model.engine
        if self.calls or engine.calls >= engine.max_sequences:
            raise QueueFull("there is other work")
        drawing = RequestSampling(request, ids, self.model.limits, None)
        looking = look_ahead(engine, request, drawing, self._q_top_k, ahead)
        task = asyncio.get_running_loop().create_task(engine.run(looking, deadline))
        self._ahead.add(task)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            while not task.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({task})
            self._ahead.discard(task)
        try:
            task.result()
        except asyncio.CancelledError:
            raise QueueFull("there is other work") from None
        finally:
            del task  # an error's traceback has this frame, and the task has the error: a cycle
