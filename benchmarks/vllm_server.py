"""vLLM's own OpenAI server as one more process of a benchmark."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from testing.processes import Process, Stack

SERVED_NAME = "target"
# Without these vLLM would send usage statistics, and bind each of its threads to one of few cores.
VARIABLES = {
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def serve_vllm(
    stack: Stack, model: Path | str, arguments: Mapping[str, Any], seconds: float, **variables: str
) -> Process:
    """`vllm serve MODEL` with these engine arguments by name, awaited. Raises RuntimeError with the log's end."""
    options = ["--model", str(model), "--served-model-name", SERVED_NAME]
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        options += [flag] if value is True else [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    process = stack.module("vllm", "vllm.entrypoints.openai.api_server", *options, **VARIABLES, **variables)
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.alive:
        with suppress(httpx.HTTPError):
            if httpx.get(f"{process.url}/health", timeout=2.0, trust_env=False).status_code == 200:
                return process
        time.sleep(0.2)
    raise RuntimeError(f"vLLM does not answer:\n{process.log_tail()}")
