"""The ways to serve that engines_gpu.py measures, each as a context in which its processes run."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.synthetic_target import PROPOSER
from benchmarks.vllm_server import VARIABLES, serve_vllm
from testing.processes import ROOT, Process, Stack, free_port

GAMMA = 5
RATES = [0.75**place for place in range(1, GAMMA + 1)]


@dataclass(frozen=True, slots=True)
class Options:
    target: Path
    draft: Path
    tiny: bool
    gpus: int
    prompt_tokens: int
    tokens: int
    memory_gb: float
    deadline_ms: float
    start_seconds: float
    vocabulary: int
    until: float

    @property
    def synthetic(self) -> dict[str, Any]:
        """On CPU vLLM has no such sampler; the tiny draft is the target, so that all is accepted."""
        if self.tiny:
            return {}
        return {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": RATES}

    @property
    def vllm_args(self) -> dict[str, Any]:
        if self.tiny:
            return {"max_num_seqs": 32, "enforce_eager": True, "block_size": 32}
        return {"max_num_seqs": 32, "load_format": "dummy", "gpu_memory_utilization": 0.8}

    @property
    def dtype(self) -> str:
        return "float32" if self.tiny else "bfloat16"

    @property
    def context_length(self) -> int:
        return 1024

    def seconds_left(self, most: float) -> float:
        """Raises TimeoutError if there are none."""
        left = min(most, self.until - time.monotonic())
        if left < 5.0:
            raise TimeoutError("no time left for this row")
        return left


@dataclass(frozen=True, slots=True)
class Rig:
    """The server to ask, and what reports on its rounds: the draft worker, the timed proposer's log."""

    server: Process
    draft: Process | None = None
    clock: Path | None = None


class Rows:
    """The kinds of rows; each a context in which a client may measure, and may read how rounds went."""

    def __init__(self, options: Options, logs: Path) -> None:
        self._options = options
        self._logs = logs

    @contextmanager
    def plain(self) -> Iterator[Rig]:
        with Stack(self._logs / "plain") as stack:
            yield Rig(self._serve(stack))

    @contextmanager
    def draft_model(self) -> Iterator[Rig]:
        options = self._options
        speculative = {"method": "draft_model", "model": str(options.draft), "num_speculative_tokens": GAMMA}
        with Stack(self._logs / "draft_model") as stack:
            yield Rig(self._serve(stack, speculative_config=speculative | options.synthetic))

    @contextmanager
    def serve(self) -> Iterator[Rig]:
        options = self._options
        speculative = {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": GAMMA}
        with Stack(self._logs / "serve") as stack:
            draft = self._draft(stack)
            additional = {"tandem": {"draft_url": [draft.url], "deadline_ms": options.deadline_ms}}
            vllm = self._serve(stack, speculative_config=speculative | options.synthetic, additional_config=additional)
            draft.wait_ready(options.seconds_left(options.start_seconds))
            yield Rig(vllm, draft, self._clock)

    @contextmanager
    def tandem(self) -> Iterator[Rig]:
        options = self._options
        with Stack(self._logs / "tandem") as stack:
            draft = self._draft(stack)
            os.environ["SYNTHETIC_RATES"] = json.dumps(options.synthetic)
            port = free_port()
            settings = {
                "model": str(options.target),
                "engine": "vllm",
                "vllm_args": json.dumps(options.vllm_args),
                "memory_gb": str(options.memory_gb),
                "dtype": options.dtype,
                "context_length": str(options.context_length),
                "draft_workers": json.dumps([draft.url]),
                "most_drafted": str(GAMMA),
                "draft_deadline_ms": str(options.deadline_ms),
            }
            command = [sys.executable, "-m", "benchmarks.synthetic_target", "target"]
            command += ["--host", "127.0.0.1", "--port", str(port)]
            variables = {f"TANDEM_TARGET_{name}".upper(): value for name, value in settings.items()}
            environment = {**os.environ, **VARIABLES, **self._variables(), **variables}
            target = Process("target", command, port, stack.logs / "target.log", environment)
            stack.processes.append(target)
            gateway = stack.gateway([target.url], [draft.url], draft_tokens=GAMMA)
            for process in (draft, target, gateway):
                process.wait_ready(options.seconds_left(options.start_seconds))
            yield Rig(gateway, draft, self._clock)

    @property
    def _clock(self) -> Path:
        return self._logs / "proposer.log"

    def _variables(self) -> dict[str, str]:
        """Variables for the process that holds vLLM, added to this one's environment."""
        device = {"VLLM_CPU_KVCACHE_SPACE": "1"} if self._options.tiny else {"CUDA_VISIBLE_DEVICES": "0"}
        return {
            "TIMED_PROPOSER_LOG": str(self._clock),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            **device,
        }

    def _draft(self, stack: Stack) -> Process:
        options = self._options
        settings: dict[str, Any] = {
            "context_length": options.context_length,
            "slots": 32,
            "prefill_chunk_tokens": 4096,
            "dtype": options.dtype,
        }
        if options.tiny:
            settings |= {"chains": "on", "threads": 1}
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = "1" if options.gpus > 1 else "0"
        return stack.draft(options.draft, **settings)

    def _serve(self, stack: Stack, **more: Any) -> Process:
        """vLLM's own server."""
        options = self._options
        arguments = {
            "dtype": options.dtype,
            "max_model_len": options.context_length,
            "kv_cache_memory_bytes": int(options.memory_gb * 2**30),
            **options.vllm_args,
            **more,
        }
        seconds = options.seconds_left(options.start_seconds)
        return serve_vllm(stack, options.target, arguments, seconds, **self._variables())
