"""Tandem's proposer with a clock, for engines_gpu.py: a line a step in the file that TIMED_PROPOSER_LOG names.

For vllm_lookahead.py: with TIMED_PROPOSER_STEP_MS vLLM's steps last at least as long, its processors free for others;
and each step looks ahead as the file says that TIMED_PROPOSER_MODE names.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, get_args

from basics.names import OnOffAuto
from engines.vllm.proposer import TandemProposer
from engines.vllm.proposer.lookahead import Lookahead, LookaheadChoice, Way


class TimedProposer(TandemProposer):
    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self._log = open(os.environ["TIMED_PROPOSER_LOG"], "a", buffering=1)  # noqa: SIM115 - open as long as vLLM runs
        self._least = float(os.environ.get("TIMED_PROPOSER_STEP_MS", "0")) / 1e3
        mode = os.environ.get("TIMED_PROPOSER_MODE")
        self._mode = Path(mode) if mode is not None else None
        self._modes: dict[str, Lookahead] = {mode: Lookahead(mode) for mode in get_args(OnOffAuto)}
        self._modes |= {way: _Always(way) for way in get_args(Way) if way not in self._modes}
        self._returned = time.perf_counter()

    def propose(self, *arguments: Any, **more: Any) -> list[list[int]]:
        """Writes the time (time.time); seconds in vLLM since the last step; seconds in here; rows; drafted tokens."""
        if self._mode is not None:
            self._lookahead = self._modes[self._mode.read_text()]
        time.sleep(max(0.0, self._returned + self._least - time.perf_counter()))
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


class _Always(Lookahead):
    """One way, whatever the batch."""

    def __init__(self, way: Way) -> None:
        super().__init__("on")
        self._only = LookaheadChoice([way])

    def choice(self, rows: int, able: bool, longer: bool) -> LookaheadChoice:
        return self._only
