"""Tandem's proposer with a clock, for engines_gpu.py: a line a step in the file that TIMED_PROPOSER_LOG names."""

from __future__ import annotations

import os
import time
from typing import Any

from engines.vllm.proposer import TandemProposer


class TimedProposer(TandemProposer):
    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self._log = open(os.environ["TIMED_PROPOSER_LOG"], "a", buffering=1)  # noqa: SIM115 - open as long as vLLM runs
        self._returned = time.perf_counter()

    def propose(self, *arguments: Any, **more: Any) -> list[list[int]]:
        """Writes the time (time.time); seconds in vLLM since the last step; seconds in here; rows; drafted tokens."""
        began = time.perf_counter()
        drafts = super().propose(*arguments, **more)
        ended = time.perf_counter()
        drafted = sum(len(draft) for draft in drafts)
        print(
            f"{time.time():.4f} {began - self._returned:.6f} {ended - began:.6f} {len(drafts)} {drafted}",
            file=self._log,
        )
        self._returned = time.perf_counter()
        return drafts
