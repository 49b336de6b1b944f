"""vLLM's engine arguments from a worker's settings."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from config.workers import LONGEST_DEFAULT_CONTEXT, WorkerConfig
from engines.errors import ModelError
from engines.models import ModelFiles

_CPU_MEMORY_GB = 2.0


def prepare_environment(is_cpu: bool) -> None:
    """What vLLM reads from the environment as it starts. Variables that are set already stay as they are."""
    # Forking a process that has threads, locks and a listening socket is unsafe.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    # Custom logits processors are a feature of the first model runner.
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    if is_cpu:
        # Two workers on one machine would be bound to the same cores.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def engine_arguments(
    config: WorkerConfig, files: ModelFiles, longest_context: int, is_cpu: bool, ours: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments for vLLM's AsyncEngineArgs, by name.

    `ours` are those that the caller needs for its way of using vLLM (logits_processors, speculative_config, …).
    `config.vllm_args` go through as they are. Raises ModelError, naming the argument, for those that vLLM has not.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for name in config.vllm_args:
        check_passed(name, known)
    dtype: str = config.dtype
    if is_cpu and dtype == "auto":
        dtype = "float32"
    arguments: dict[str, Any] = {
        "model": str(files.folder),
        "served_model_name": files.id,
        "max_model_len": config.context_length or min(longest_context, LONGEST_DEFAULT_CONTEXT),
        "dtype": dtype,
        "load_format": "auto" if config.allow_pickle_weights else "safetensors",
        "skip_tokenizer_init": True,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
    }
    memory_gb = config.memory_gb
    if memory_gb is None and is_cpu and "gpu_memory_utilization" not in config.vllm_args:
        memory_gb = _CPU_MEMORY_GB  # vLLM would take nine tenths of the machine's
    if memory_gb is not None:
        arguments["kv_cache_memory_bytes"] = int(memory_gb * 2**30)
    return arguments | config.vllm_args | dict(ours)


def check_passed(name: str, known: set[str]) -> None:
    """Raises ModelError if vLLM has no such argument."""
    if name not in known:
        close = get_close_matches(name, known, n=1)
        raise ModelError(f"vllm_args: vLLM has no argument {name}" + (f"; did you mean {close[0]}?" if close else ""))
