"""Does it fit? Weights and key-value memory against what the device has free."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from basics.machine import free_host_bytes, gib
from engines.errors import ModelError
from engines.models import weight_files
from engines.open_weights import open_weights
from engines.torch.kv_cache import CacheShape, LayerShape
from engines.torch.quantization import DEQUANTISING_BYTES, numbers_in_one
from engines.torch.recurrent import SNAPSHOTS
from engines.torch.support import attention_layers, changing_length, layer_window, recurrent_layers
from engines.torch.wrappers import new_model


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on the device, a container's limit included."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return free_host_bytes()


def weight_bytes(folder: Path, dtype: torch.dtype, left_out: Callable[[str], bool] = lambda name: False) -> int:
    """Bytes of the weights once loaded as `dtype`, without the tensors that `left_out` names.

    Those of MXFP4 are counted as what they are dequantised to, and the largest of them once more while that is done.
    """
    total = most = 0
    for name, shape, kind in stored_tensors(folder):
        if left_out(name):
            continue
        packed = numbers_in_one(name, kind)
        numbers = math.prod(shape) * packed
        total += numbers * dtype.itemsize
        if packed > 1:
            most = max(most, numbers * DEQUANTISING_BYTES)
    pickled = [file for file in weight_files(folder, allow_pickle_weights=True) if file.suffix != ".safetensors"]
    return total + most + sum(file.stat().st_size for file in pickled)


def stored_tensors(folder: Path) -> Iterator[tuple[str, Sequence[int], str]]:
    """Name, shape and dtype (as safetensors names it) of every tensor in a folder's safetensors files.

    Raises:
        ModelError: naming a file that can't be read as one.
    """
    for file in weight_files(folder):
        with open_weights(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118 (safe_open is no mapping)
                stored = tensors.get_slice(name)
                yield name, stored.get_shape(), stored.get_dtype()


def cache_shape(config: Any, slot_length: int, bucket: int = 1) -> CacheShape:
    """Keys and values of a decoder with this configuration (the runner later measures the real ones), for sequences of
    up to `slot_length` tokens; `bucket` as the runner's."""
    shape, text = _all_kept(config), config.get_text_config()
    first = changing_length(config)
    if recurrent_layers(config) or (first is not None and first < slot_length):
        return shape
    windows = {layer: layer_window(text, layer) for layer in shape.layers}
    return shape.with_windows(windows, slot_length, bucket=bucket)


def _all_kept(config: Any) -> CacheShape:
    text = config.get_text_config()
    layers = attention_layers(config)
    if not layers:
        return CacheShape({})
    heads = text.num_attention_heads
    if getattr(text, "kv_lora_rank", None):
        # Multi-head latent attention (arXiv:2405.04434): what is kept here is every head's own keys and values, not
        # the latent vector that they are made of.
        key_dim = text.qk_nope_head_dim + text.qk_rope_head_dim
        return CacheShape(dict.fromkeys(layers, LayerShape(heads, key_dim, text.v_head_dim)))
    of_layers = getattr(text, "per_layer_config", None)
    if of_layers is not None:
        # Gemma 4: the layers that see everything have heads of their own.
        return CacheShape({layer: _layer_shape(of_layers[layer]) for layer in layers})
    return CacheShape(dict.fromkeys(layers, _layer_shape(text)))


def _layer_shape(text: Any) -> LayerShape:
    heads = text.num_attention_heads
    dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    return LayerShape(getattr(text, "num_key_value_heads", None) or heads, dim, dim)


def state_bytes(config: Any, dtype: torch.dtype) -> int:
    """Bytes of one slot's recurrent states, its snapshots included; 0 for a model without.

    Found by running the model without weights (torch's meta device).

    Raises:
        ModelError: if that fails.
    """
    if not recurrent_layers(config):
        return 0
    try:
        with torch.device("meta"), torch.no_grad():
            # Experts' products on this device are for bfloat16 alone.
            model = new_model(config, dtype=torch.bfloat16, attn_implementation="eager").eval()
            cache = DynamicCache(config=config)
            name = (
                "cache_params" if "cache_params" in inspect.signature(model.forward).parameters else "past_key_values"
            )
            model(torch.zeros(1, 1, dtype=torch.long), use_cache=True, **{name: cache})
    except Exception as error:  # whatever this model's code can't do there
        raise ModelError(f"the size of its recurrent states could not be found: {error}") from error
    total = 0
    for layer in recurrent_layers(config):
        held = cache.layers[layer]
        total += sum(tensor.numel() * dtype.itemsize for tensor in held.conv_states.values() if tensor is not None)
        # In float32 whatever the dtype, in most models.
        total += sum(tensor.numel() * 4 for tensor in held.recurrent_states.values() if tensor is not None)
    return total * (1 + SNAPSHOTS + 1)  # one is being taken while the others are there


def slots_within(budget: int, shape: CacheShape, slot_length: int, dtype: torch.dtype, states: int = 0) -> int:
    """How many sessions of `slot_length` tokens `budget` bytes hold: keys, values and `states` bytes of each session.

    Raises:
        ModelError: if not even one.
    """
    per_slot = shape.slot_bytes(slot_length, dtype) + states
    if per_slot > budget:
        raise ModelError(
            f"{gib(budget)} hold no keys and values of {slot_length} tokens, which take {gib(per_slot)}; "
            "give more memory or a shorter context length"
        )
    return budget // per_slot


def check_fits(
    weights: int,
    shape: CacheShape,
    num_slots: int,
    slot_length: int,
    dtype: torch.dtype,
    device: torch.device,
    states: int = 0,
    apart: int = 0,
) -> None:
    """Refuse what would not fit, with the sums; `states`: bytes of recurrent states of each session; `apart`: tokens
    that have keys and values beside the sessions'.

    Raises:
        ModelError
    """
    per_token, windows = shape.bytes_per_token(dtype), shape.window_bytes(dtype)
    cache = num_slots * shape.slot_bytes(slot_length, dtype) + apart * per_token
    free = free_bytes(device)
    if weights + cache + num_slots * states > free:
        beside = f" and {windows:,} B of windows" if windows else ""
        kept = f", {gib(num_slots * states)} for recurrent states ({num_slots} × {states:,} B)" if states else ""
        raise ModelError(
            f"does not fit on {device}: {gib(weights)} of weights and {gib(cache)} for keys and values "
            f"({num_slots} sessions × {slot_length} tokens × {per_token:,} B{beside}){kept}, {gib(free)} free; "
            "lower the number of sessions or the context length, or choose a smaller dtype"
        )
