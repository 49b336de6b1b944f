"""What vLLM reports of its steps, for our metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from engines.running_model import OnPass


class PassStats:
    """Requests running and waiting now. Each step calls `on_pass(sessions, tokens, seconds since the step before)`."""

    def __init__(self, on_pass: OnPass) -> None:
        self.running = 0
        self.waiting = 0
        self._on_pass = on_pass
        self._last = time.perf_counter()

    def record(self, scheduler_stats: Any, iteration_stats: Any) -> None:
        now = time.perf_counter()
        busy = self.running > 0
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs
            self.waiting = scheduler_stats.num_waiting_reqs
        if iteration_stats is not None:
            tokens = iteration_stats.num_prompt_tokens + iteration_stats.num_generation_tokens
            # After a pause, the step's own time cannot be separated from the pause.
            if tokens and busy:
                self._on_pass(max(1, self.running), tokens, now - self._last)
        self._last = now


def stat_logger(stats: PassStats) -> Callable[..., Any]:
    """A factory of the kind that AsyncLLM takes, whose logger reports to `stats`."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Logger(StatLoggerBase):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def record(self, scheduler_stats: Any, iteration_stats: Any, *rest: Any, **more: Any) -> None:
            stats.record(scheduler_stats, iteration_stats)

        def log_engine_initialized(self) -> None:
            pass

    return Logger
