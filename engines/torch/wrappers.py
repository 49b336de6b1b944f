"""Models that wrap a language model in towers for images or sound: the language model inside is what is served.

The wrapper's own code runs, as it decides how text is computed (positions in three axes for Qwen's, scaled logits for
Granite's); its towers are taken out before any weight is read, so that they take no memory.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from engines.model_building import build_model

SERVED = frozenset({
    "aya_vision", "cohere2_vision", "exaone4_5", "glm46v", "glm4v", "glm4v_moe", "idefics2", "idefics3", "internvl",
    "kimi_k25", "lfm2_vl", "llava", "llava_next", "llava_onevision", "mistral3", "qwen2_5_vl", "qwen2_vl", "qwen3_vl",
    "qwen3_vl_moe", "smolvlm", "vipllava",
})  # fmt: skip
"""Types whose text was compared with the wrapper's own (tests/engines/torch/test_wrappers.py), beside those for which
transformers itself has a class that generates text."""


def model_class(config: Any) -> Any:
    """The class of transformers that computes this model's text; None if there is none that is served."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    )

    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if config.model_type in SERVED:
        return MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)]
    return None


def loading_class(config: Any) -> Any:
    """What has `from_pretrained` and `from_config` for the model's text: an Auto class of transformers where that
    finds the text by itself, or a wrapper's class without its towers."""
    found = model_class(config)
    if not is_wrapper(config) or found.config_class is not type(config):
        return transformers.AutoModelForCausalLM
    return text_half(found)


def new_model(config: Any, **options: Any) -> Any:
    """A model of this configuration, its text alone, with random weights; `options` as of transformers'
    `from_config`."""
    found = loading_class(config)
    make = found.from_config if found is transformers.AutoModelForCausalLM else found._from_config
    return build_model(make, copy.deepcopy(config), **options)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What of a model's files is not loaded: `parts` of the wrapper, and tensors whose names `patterns` match."""

    parts: tuple[str, ...]
    patterns: tuple[str, ...]

    def __call__(self, tensor: str) -> bool:
        """Whether a tensor of this name is left out."""
        return any(re.search(pattern, tensor) for pattern in self.patterns)


def left_out(config: Any) -> LeftOut:
    """Towers, and what transformers leaves out of a model on purpose: layers that predict several tokens, and towers
    where it finds the text by itself."""
    found = loading_class(config)
    if found is transformers.AutoModelForCausalLM:
        return LeftOut((), tuple(model_class(config)._keys_to_ignore_on_load_unexpected or ()))
    with torch.device("meta"):
        model = new_model(config)
    return LeftOut(tuple(model.left_out), tuple(model._keys_to_ignore_on_load_unexpected))


def is_wrapper(config: Any) -> bool:
    """Whether a language model is only part of what this configuration describes."""
    return config.get_text_config() is not config


def text_half(whole: Any) -> Any:
    """A class of transformers, its models without what stands beside their language model and its head."""

    def build(self: Any, *arguments: Any, **keywords: Any) -> None:
        whole.__init__(self, *arguments, **keywords)
        self.left_out = take_out_towers(self)

    # Under the same name and module: by these transformers finds how old files name its tensors.
    return type(whole.__name__, (whole,), {"__init__": build, "__module__": whole.__module__})


def take_out_towers(model: Any) -> list[str]:
    """Remove what stands beside the language model and its head, in place; returns the names of the parts."""
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    kept = {id(module) for module in (decoder, head)}
    around = [model, *(module for module in model.children() if _holds(module, decoder))]
    found = []
    for parent in around:
        for name, child in list(parent.named_children()):
            if id(child) not in kept and not _holds(child, decoder):
                delattr(parent, name)
                found.append(name)
    names = dict(model.named_parameters(remove_duplicate=False))
    model.all_tied_weights_keys = {
        tied: source for tied, source in model.all_tied_weights_keys.items() if tied in names and source in names
    }
    # By this transformers neither misses them nor reports each of their tensors.
    model._keys_to_ignore_on_load_unexpected |= {rf"(^|\.){re.escape(name)}\." for name in found}
    return sorted(found)


def _holds(module: nn.Module, part: nn.Module) -> bool:
    return any(child is part for child in module.modules()) and module is not part
