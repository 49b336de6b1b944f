"""Rotary scaling of a GGUF file, as transformers' rope_parameters.

llama.cpp has four kinds: none, linear, yarn (arXiv:2309.00071) and longrope (arXiv:2402.13753); and factors by which
every frequency is divided, in a tensor: `rope_freqs.weight` for all lengths (so Llama 3.1 and later are written),
`rope_factors_short.weight` and `rope_factors_long.weight` for contexts up to the original length and beyond.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engines.errors import ModelError
from engines.gguf.reader import GgufModel

FACTORS = "rope_freqs.weight"
SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"
# The scaling of Llama 3.1, 3.2 and 3.3: (factor, low_freq_factor, high_freq_factor, original length).
_LLAMA3 = [(8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192)]


def rope_parameters(
    model: GgufModel, arch: str, *, theta: float, dimensions: int, context_length: int
) -> dict[str, Any]:
    """transformers' `rope_parameters` for one kind of layer, of `dimensions` rotated dimensions a head.

    Raises:
        ModelError: for scaling that transformers has no words for.
    """
    metadata = model.metadata
    prefix = f"{arch}.rope.scaling."
    kind = metadata.get(prefix + "type")
    # `scale_linear` is what early files call the factor; a factor without a type is a linear one.
    factor = float(metadata.get(prefix + "factor") or metadata.get(f"{arch}.rope.scale_linear") or 0) or 1.0
    original = int(metadata.get(prefix + "original_context_length") or 0) or context_length
    attention = float(metadata.get(prefix + "attn_factor") or 0) or 1.0
    metadata.get(prefix + "finetuned")  # says how the model came to be
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if kind not in (None, "none", "linear", "yarn", "longrope"):
        raise ModelError(f"rotary scaling of type {kind} is not supported")
    if SHORT in model.tensors or LONG in model.tensors or kind == "longrope":
        if factor != 1.0 or kind == "yarn" or FACTORS in model.tensors:
            raise ModelError("its rotary scaling has both longrope's factors and others, which is not supported")
        return parameters | {
            "rope_type": "longrope",
            "short_factor": _factors(model, SHORT, dimensions),
            "long_factor": _factors(model, LONG, dimensions),
            "original_max_position_embeddings": original,
            "attention_factor": attention,
        }
    if FACTORS in model.tensors:
        if factor != 1.0 and kind != "none":
            raise ModelError(f"its rotary scaling has both {FACTORS} and a factor, which is not supported")
        return _divided(parameters, _factors(model, FACTORS, dimensions), attention, context_length)
    if kind == "yarn":
        return parameters | _yarn(model, prefix, factor, original, attention)
    if attention != 1.0:
        raise ModelError(f"{prefix}attn_factor without yarn or longrope is not supported")
    if kind != "none" and factor != 1.0:
        return parameters | {"rope_type": "linear", "factor": factor}
    return parameters


def _yarn(model: GgufModel, prefix: str, factor: float, original: int, attention: float) -> dict[str, Any]:
    metadata = model.metadata
    extrapolation = metadata.get(prefix + "yarn_ext_factor", 1.0)
    if extrapolation not in (1.0, -1.0):  # −1: as the type says
        raise ModelError(f"{prefix}yarn_ext_factor {extrapolation} is not supported")
    attention *= float(metadata.get(prefix + "yarn_attn_factor", 1.0))
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": float(metadata.get(prefix + "yarn_beta_fast", 32.0)),
        "beta_slow": float(metadata.get(prefix + "yarn_beta_slow", 1.0)),
        # llama.cpp multiplies the file's factor by YaRN's own, which is all that transformers knows.
        "attention_factor": attention * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0),
    }


def _divided(parameters: dict[str, Any], factors: list[float], attention: float, length: int) -> dict[str, Any]:
    """Frequencies divided by `factors`: under Llama's own name where they are its, else as a longrope of one length."""
    if attention != 1.0:
        raise ModelError(f"{FACTORS} and a factor of attention together are not supported")
    if all(factor == 1.0 for factor in factors):
        return parameters
    for factor, low, high, original in _LLAMA3:
        if np.allclose(factors, llama3_factors(parameters["rope_theta"], len(factors), factor, low, high, original)):
            return parameters | {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    return parameters | {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "original_max_position_embeddings": length,
        "attention_factor": 1.0,
    }


def llama3_factors(theta: float, count: int, factor: float, low: float, high: float, original: int) -> list[float]:
    """What Llama 3.1 divides its `count` frequencies by.

    By 1 where a wave is shorter than original / high, by `factor` where it is longer than original / low, and between
    them by what lies between.
    """
    factors = []
    for index in range(count):
        wavelength = 2 * math.pi * theta ** (index / count)
        smooth = (original / wavelength - low) / (high - low)
        smooth = min(max(smooth, 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / factor + smooth))
    return factors


def _factors(model: GgufModel, name: str, dimensions: int) -> list[float]:
    shape = model.shape(name)
    if shape != (dimensions // 2,):
        raise ModelError(
            f"tensor {name} has shape {list(shape)}, where {dimensions // 2} frequencies are to be divided"
        )
    return [float(value) for value in model.values(name)]
