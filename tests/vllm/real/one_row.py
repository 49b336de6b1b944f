"""A batch of requests as vLLM keeps it, around a real logits processor and a model that is a table of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate

from engines.vllm.requests import Answer
from target_worker.vllm.processor import VerdictProcessor

VOCABULARY = 300


def processor() -> VerdictProcessor:
    return VerdictProcessor(None, torch.device("cpu"), False)  # type: ignore[arg-type]  # it reads no configuration


def logits_after(ids: Sequence[int], scale: float = 3.0) -> torch.Tensor:
    """The model's logits, float32 [V]: a function of the whole sequence."""
    generator = torch.Generator().manual_seed(hash(tuple(ids)) % 2**31)
    return scale * torch.randn(VOCABULARY, generator=generator)


class OneRow:
    """A VllmEngine that runs one request at a time, in this process."""

    def __init__(self, scale: float = 3.0) -> None:
        self._scale = scale

    async def ask(self, ids: list[int], params: Any, salt: str | None = None) -> Answer:
        drawing, output = self.processor(), list[int]()
        drawing.update_state(BatchUpdate(batch_size=1, removed=[], added=[self.added(params, ids, output)], moved=[]))
        for _ in range(params.max_tokens):
            row = logits_after([*ids, *output], self._scale)[None]
            output.append(int(drawing.apply(row).argmax()))
        return Answer(output, [], [], 0, None, 0.0, 0.0)

    def processor(self) -> Any:
        return processor()

    def added(self, params: Any, ids: list[int], output: list[int]) -> tuple[int, Any, list[int], list[int]]:
        return (0, params, ids, output)
