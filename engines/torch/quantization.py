"""Which quantised checkpoints transformers dequantises or computes rightly, judged before any weight is loaded.

A quantiser that transformers does not know, or one whose scales lie under names that it does not read, leaves numbers
without their scales: they load, and answer nonsense. So whatever is stored in less than 16 bits needs a quantiser, and
one that is known to read its scales.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.errors import ModelError
from engines.models import weight_files
from engines.open_weights import open_weights
from engines.torch.elsewhere import instead

# As safetensors names them. BOOL and integers of 64 bits are masks and positions, never weights.
_PLAIN_DTYPES = frozenset({"F64", "F32", "F16", "BF16", "BOOL", "I64", "U64"})

DEQUANTISING_BYTES = 6
"""For every number of an MXFP4 tensor, beside the number itself: transformers makes it in bfloat16, transposes a copy,
and has an index in 32 bits for every other one."""


def check_quantization(folder: Path, config: Any) -> None:
    """Refuse weights whose scales would be dropped.

    Raises:
        ModelError: naming the quantiser, or the tensor that has none.
    """
    described = _described(config)
    if described:
        _check_method(described)
        return
    producer = _modelopt(folder)
    if producer:
        raise ModelError(
            f"its weights were quantised by {producer} (hf_quant_config.json), whose scales the torch engine can't "
            f"apply; {instead()}, or the unquantised model"
        )
    odd = _tensor_in_few_bits(folder)
    if odd is not None:
        name, dtype = odd
        raise ModelError(
            f"tensor {name} is stored as {dtype}, and nothing in the folder says how it was quantised; choose a folder "
            "that has its quantiser's configuration, or the unquantised model"
        )


def dequantised(config: Any) -> dict[str, Any]:
    """What has transformers dequantise, while it loads them, weights that the torch engine has no kernel for."""
    if _described(config).get("quant_method") != "mxfp4":
        return {}
    from transformers import Mxfp4Config

    return {"quantization_config": Mxfp4Config(dequantize=True)}


def numbers_in_one(name: str, dtype: str) -> int:
    """How many numbers of the loaded model come from one number of a file's tensor, by its name and dtype there."""
    if dtype != "U8":
        return 1
    if name.endswith("_blocks"):
        return 2
    return 0 if name.endswith("_scales") else 1


def _described(config: Any) -> Mapping[str, Any]:
    for part in (config, config.get_text_config()):
        described = getattr(part, "quantization_config", None)
        if described is not None and not isinstance(described, Mapping):
            described = described.to_dict()
        if described:
            found: Mapping[str, Any] = described
            return found
    return {}


def _check_method(described: Mapping[str, Any]) -> None:
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    method = described.get("quant_method")
    known = method in AUTO_QUANTIZATION_CONFIG_MAPPING or (
        method == "bitsandbytes" and "bitsandbytes_4bit" in AUTO_QUANTIZATION_CONFIG_MAPPING
    )
    if _is_nvfp4(described):
        raise ModelError(f"its weights are NVFP4, which the torch engine does not compute; {instead()}")
    if not known:
        raise ModelError(
            f"its weights were quantised with {method or 'an unnamed method'}, which is not supported; {instead()}"
        )
    if method != "fp8":
        return
    # AutoFP8, and others after it: one scale a tensor named weight_scale, which transformers does not read.
    if not described.get("weight_block_size"):
        raise ModelError(
            "its weights are FP8 with one scale a tensor (AutoFP8), which is not supported, one scale a block is; "
            f"{instead()}"
        )
    if described.get("activation_scheme", "dynamic") != "dynamic":
        raise ModelError(f"its weights are FP8 with static scales of activations, which is not supported; {instead()}")


def _is_nvfp4(described: Mapping[str, Any]) -> bool:
    """Under whatever quantiser's name: transformers' own, ModelOpt's, or a format of compressed-tensors."""
    named = [described.get(key) for key in ("quant_method", "quant_algo", "format")]
    groups = described.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        if isinstance(group, Mapping):
            named.append(group.get("format"))
    return any("nvfp4" in str(name).lower() for name in named)


def _modelopt(folder: Path) -> str | None:
    file = folder / "hf_quant_config.json"
    if not file.is_file():
        return None
    try:
        described = json.loads(file.read_text())
        producer = str((described.get("producer") or {}).get("name") or "modelopt")
        method = (described.get("quantization") or {}).get("quant_algo")
    except (ValueError, OSError, AttributeError):
        return "an unknown method"
    return f"{producer} to {method}" if method else producer


def _tensor_in_few_bits(folder: Path) -> tuple[str, str] | None:
    for file in weight_files(folder):
        with open_weights(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118 (safe_open is no mapping)
                # Causal masks of early GPT-2 and GPT-NeoX files are bytes.
                dtype = tensors.get_slice(name).get_dtype()
                if dtype not in _PLAIN_DTYPES and not name.endswith((".bias", ".masked_bias")):
                    return name, dtype
    return None
