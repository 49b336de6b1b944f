"""Inside vLLM: draws for drafts."""

from __future__ import annotations

from draft_worker.vllm import rows
from engines.vllm.processor import SamplingProcessor


class DraftProcessor(SamplingProcessor):
    """A row of logits says which token was drawn, and how (draft_worker/vllm/rows.py)."""

    write = staticmethod(rows.write)
    write_failure = staticmethod(rows.write_failure)
