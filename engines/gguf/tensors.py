"""The tensors of a GGUF file as those of a transformers model: every one of both, or a refusal.

Names are translated by the gguf library's own table. What llama.cpp's converter does to values is undone here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engines.errors import ModelError
from engines.gguf.reader import GgufModel
from engines.model_building import build_model

_EXPERTS = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up_proj|down_proj)")
_TURNED = re.compile(r"blk\.\d+\.attn_(?P<which>[qk])\.(weight|bias)")
_NORM = re.compile(r"(^|\.)\w*norm\.weight$")
# Rotary frequencies, computed from the configuration; what divides them became part of it.
_IN_CONFIGURATION = re.compile(r"rope_freqs\.weight|rope_factors_(short|long)\.weight|blk\.\d+\.attn_rot_embd\.weight")
# Architectures whose queries and keys llama.cpp rotates in pairs (2i, 2i + 1), not (i, i + half).
PAIRED = frozenset({"llama", "granite"})
# Those whose norms are written with the one added that the model adds to its weights.
_ONE_ADDED = frozenset({"gemma", "gemma2", "gemma3"})


def state_dict(model: GgufModel, arch: str, config: Any) -> dict[str, Tensor]:
    """Every weight of the model that `config` describes, in float32, by transformers' names; tied ones left out.

    Raises:
        ModelError: naming a tensor that is missing, of another shape than the configuration says, or left over.
    """
    weights = _Weights(model, arch, config)
    found: dict[str, Tensor] = {}
    for name, shape in _expected(config).items():
        values = weights.of(name)
        if values.shape != shape and values.size == np.prod(shape) and 1 in shape:
            values = values.reshape(shape)  # vectors that transformers holds as matrices of one row
        if values.shape != shape:
            raise ModelError(
                f"{weights.names[name]} has shape {list(values.shape)}, where its metadata says {list(shape)}"
            )
        found[name] = torch.from_numpy(np.require(values, requirements=["C", "W"]))
    left = sorted(name for name in model.tensors if name not in weights.used and not _IN_CONFIGURATION.fullmatch(name))
    if left:
        raise ModelError(
            f"{len(left)} tensors of its GGUF file have no place in a {arch} model, {left[0]} among them; "
            "without them its answers would be wrong"
        )
    return found


def _expected(config: Any) -> Mapping[str, tuple[int, ...]]:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        described = build_model(AutoModelForCausalLM.from_config, config, dtype=torch.float32)
    tied = described.all_tied_weights_keys
    return {name: tuple(tensor.shape) for name, tensor in described.state_dict().items() if name not in tied}


class _Weights:
    """Looks up weights, and remembers which tensors of the file were used, and for what."""

    def __init__(self, model: GgufModel, arch: str, config: Any) -> None:
        self._table = name_table(arch, config.num_hidden_layers)
        self._model, self._arch, self._config = model, arch, config
        self.used: set[str] = set()
        self.names: dict[str, str] = {}

    def of(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A weight by transformers' name. Raises ModelError if the file has none."""
        experts = _EXPERTS.fullmatch(name)
        if experts is not None:
            layer, kind = experts[1], experts[2]
            self.names[name] = f"tensor blk.{layer}.ffn_{kind.removesuffix('_proj')}_exps.weight"
            if kind == "down_proj":
                return self._experts(layer, "down")
            # transformers keeps both in one: the gate's rows, then the others'.
            return np.concatenate([self._experts(layer, "gate"), self._experts(layer, "up")], axis=1)
        stem, _, ending = name.rpartition(".")
        translated = self._table.get_name(stem)
        if translated is None or ending not in ("weight", "bias"):
            raise ModelError(f"the model's {name} has no name in GGUF files of architecture {self._arch}")
        self.names[name] = f"tensor {translated}.{ending}"
        return self._take(f"{translated}.{ending}")

    def _take(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        if name not in self._model.tensors:
            raise ModelError(f"tensor {name} is missing from its GGUF file")
        self.used.add(name)
        values = self._model.values(name)
        turned = _TURNED.fullmatch(name)
        if turned is not None and self._arch in PAIRED:
            heads = self._config.num_attention_heads if turned["which"] == "q" else self._config.num_key_value_heads
            if values.shape[0] % (2 * heads):
                raise ModelError(f"tensor {name} has {values.shape[0]} rows, which {heads} heads don't share")
            return _unpaired(values, heads)
        if self._arch in _ONE_ADDED and _NORM.search(name):
            return values - np.float32(1)
        return values

    def _experts(self, layer: str, which: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """[experts, rows, columns], from one tensor, or from one for each expert as early files have it."""
        stacked = f"blk.{layer}.ffn_{which}_exps.weight"
        count = getattr(self._config, "num_local_experts", None) or self._config.num_experts
        single = [f"blk.{layer}.ffn_{which}.{expert}.weight" for expert in range(count)]
        if stacked not in self._model.tensors and single[0] in self._model.tensors:
            return np.stack([self._take(name) for name in single])
        return self._take(stacked)


def name_table(arch: str, layers: int) -> Any:
    """The library's table of an architecture's names: `get_name` of transformers' is GGUF's, or None."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    known = next(key for key, name in MODEL_ARCH_NAMES.items() if name == arch)
    return get_tensor_name_map(known, layers)


def paired(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """llama.cpp's order of a head's rows, which has those that are rotated together beside each other."""
    half = values.shape[0] // heads // 2
    return values.reshape(heads, 2, half, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _unpaired(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Undo `paired`."""
    half = values.shape[0] // heads // 2
    return values.reshape(heads, half, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
