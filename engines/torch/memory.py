"""Does it fit? Weights and key-value memory against what the device has free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import safe_open

from engines.errors import ModelError
from engines.models import weight_files
from engines.torch.kv_cache import CacheShape

_CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on the device, a container's limit included."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    free = int(psutil.virtual_memory().available)
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, int(limit) - used)


def weight_bytes(folder: Path, dtype: torch.dtype) -> int:
    """Bytes of the weights once loaded as `dtype`."""
    total = 0
    for file in weight_files(folder, allow_pickle_weights=True):
        if file.suffix != ".safetensors":
            total += file.stat().st_size
            continue
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (safe_open is no mapping)
                elements = 1
                for extent in tensors.get_slice(name).get_shape():
                    elements *= extent
                total += elements * dtype.itemsize
    return total


def cache_shape(config: Any) -> CacheShape:
    """Keys and values of a plain decoder with this configuration (the runner later measures the real ones)."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    if getattr(text, "kv_lora_rank", None):
        # Multi-head latent attention (arXiv:2405.04434): what is kept here is every head's own keys and values, not
        # the latent vector that they are made of.
        key_dim = text.qk_nope_head_dim + text.qk_rope_head_dim
        return CacheShape.uniform(text.num_hidden_layers, heads, key_dim, text.v_head_dim)
    dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    return CacheShape.uniform(text.num_hidden_layers, getattr(text, "num_key_value_heads", None) or heads, dim, dim)


def slots_within(budget: int, shape: CacheShape, slot_length: int, dtype: torch.dtype) -> int:
    """How many sessions of `slot_length` tokens `budget` bytes of keys and values hold.

    Raises:
        ModelError: if not even one.
    """
    per_slot = slot_length * shape.bytes_per_token(dtype)
    if per_slot > budget:
        raise ModelError(
            f"{_gib(budget)} hold no keys and values of {slot_length} tokens, which take {_gib(per_slot)}; "
            "give more memory or a shorter context length"
        )
    return budget // per_slot


def check_fits(
    weights: int, shape: CacheShape, num_slots: int, slot_length: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Refuse what would not fit, with the sums.

    Raises:
        ModelError
    """
    per_token = shape.bytes_per_token(dtype)
    cache = num_slots * slot_length * per_token
    free = free_bytes(device)
    if weights + cache > free:
        raise ModelError(
            f"does not fit on {device}: {_gib(weights)} of weights and {_gib(cache)} for keys and values "
            f"({num_slots} sessions × {slot_length} tokens × {per_token:,} B), {_gib(free)} free; "
            "lower the number of sessions or the context length, or choose a smaller dtype"
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
