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

from safetensors import safe_open

from engines.errors import ModelError
from engines.models import weight_files

# As safetensors names them. BOOL and integers of 64 bits are masks and positions, never weights.
_PLAIN_DTYPES = frozenset({"F64", "F32", "F16", "BF16", "BOOL", "I64", "U64"})


def check_quantization(folder: Path, config: Any) -> None:
    """Refuse weights whose scales would be dropped.

    Raises:
        ModelError: naming the quantiser, or the tensor that has none.
    """
    described = getattr(config, "quantization_config", None)
    if described is not None and not isinstance(described, Mapping):
        described = described.to_dict()
    if described:
        _check_method(described)
        return
    producer = _modelopt(folder)
    if producer:
        raise ModelError(
            f"its weights were quantised by {producer} (hf_quant_config.json), whose scales the torch engine can't "
            "apply; choose the unquantised model, or vLLM as the engine"
        )
    odd = _tensor_in_few_bits(folder)
    if odd is not None:
        name, dtype = odd
        raise ModelError(f"tensor {name} is stored as {dtype}, and nothing in the folder says how it was quantised")


def _check_method(described: Mapping[str, Any]) -> None:
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    method = described.get("quant_method")
    known = method in AUTO_QUANTIZATION_CONFIG_MAPPING or (
        method == "bitsandbytes" and "bitsandbytes_4bit" in AUTO_QUANTIZATION_CONFIG_MAPPING
    )
    if not known:
        raise ModelError(f"its weights were quantised with {method or 'an unnamed method'}, which is not supported")
    if method != "fp8":
        return
    # AutoFP8, and others after it: one scale a tensor named weight_scale, which transformers does not read.
    if not described.get("weight_block_size"):
        raise ModelError(
            "its weights are FP8 with one scale a tensor (AutoFP8), which is not supported; one scale a block is"
        )
    if described.get("activation_scheme", "dynamic") != "dynamic":
        raise ModelError("its weights are FP8 with static scales of activations, which is not supported")


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
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (safe_open is no mapping)
                # Causal masks of early GPT-2 and GPT-NeoX files are bytes.
                dtype = tensors.get_slice(name).get_dtype()
                if dtype not in _PLAIN_DTYPES and not name.endswith((".bias", ".masked_bias")):
                    return name, dtype
    return None
