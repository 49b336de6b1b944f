"""The draft model's logits processor: a token, and what a draft needs to know of how it was drawn, out of vLLM."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from draft_worker.vllm import rows
from engines.sampling.batch import Draws
from engines.sampling.rows import SamplingRow
from engines.vllm.processor import SamplingProcessor

CLASS = f"{__name__}:DraftProcessor"


class DraftProcessor(SamplingProcessor):
    def write(self, logits: Tensor, draws: Draws, asked: dict[str, Any], row: SamplingRow) -> None:
        rows.write(logits, draws, asked)

    def write_failure(self, logits: Tensor) -> None:
        rows.write_failure(logits)
