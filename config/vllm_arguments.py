"""Which of vLLM's engine arguments a worker's `vllm_args` may not hold."""

from __future__ import annotations

from typing import Any

_SETTINGS = {
    "model": "model",
    "tokenizer": "model",
    "served_model_name": "model",
    "max_model_len": "context_length",
    "kv_cache_memory_bytes": "memory_gb",
}
"""Those that a setting of Tandem's stands for."""
_RESERVED = frozenset(
    {
        "logits_processors",
        "logprobs_mode",
        "max_logprobs",
        "skip_tokenizer_init",
        "speculative_config",
        "worker_extension_cls",
        "runner",
        "convert",
    }
)
"""What Tandem needs for itself, to draw its own tokens."""


def check_vllm_arguments(arguments: dict[str, Any], dtype: str) -> None:
    """Raises ValueError. Whether vLLM knows the others is seen once it is imported."""
    for name in arguments:
        if name in _SETTINGS:
            raise ValueError(f"vllm_args: {name} is what the setting {_SETTINGS[name]} is for")
        if name in _RESERVED:
            raise ValueError(f"vllm_args: {name} is Tandem's own to set")
    if "dtype" in arguments and dtype != "auto":
        raise ValueError("vllm_args: dtype is given there and as the setting dtype: leave one out")
