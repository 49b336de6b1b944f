"""Folders of models with the shape of real ones and meaningless weights, for machines without real models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

from engines.model_building import build_model

_SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a Qwen2 model."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int
    vocabulary: int
    tied: bool

    def config(self) -> Qwen2Config:
        return Qwen2Config(
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_value_heads,
            vocab_size=self.vocabulary,
            max_position_embeddings=32_768,
            tie_word_embeddings=self.tied,
            rope_theta=1_000_000.0,
            eos_token_id=self.vocabulary - 1,
            architectures=["Qwen2ForCausalLM"],
            dtype="bfloat16",
        )


TARGET = Shape(5120, 27_648, 64, 40, 8, 152_064, tied=False)
"""Qwen2.5-32B's."""
DRAFT = Shape(896, 4864, 24, 14, 2, 152_064, tied=True)
"""Qwen2.5-0.5B's, with the target's vocabulary."""
TINY = Shape(256, 512, 2, 4, 2, 1_024, tied=True)


def empty_model(folder: Path, shape: Shape) -> Path:
    """Configuration and tokenizer, and one tensor so that there is a weight file: for vLLM's load_format dummy."""
    folder.mkdir(parents=True, exist_ok=True)
    shape.config().save_pretrained(folder)
    _tokenizer(shape.vocabulary).save_pretrained(folder)
    save_file({"nothing": torch.zeros(1)}, folder / "model.safetensors")
    return folder


def random_model(folder: Path, shape: Shape, dtype: torch.dtype) -> Path:
    """A whole model with random weights, made on the CPU: a GPU's memory is for what is measured."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    build_model(AutoModelForCausalLM.from_config, shape.config(), dtype=dtype).save_pretrained(folder)
    _tokenizer(shape.vocabulary).save_pretrained(folder)
    return folder


def _tokenizer(size: int) -> PreTrainedTokenizerFast:
    """`size` tokens: the bytes, made-up words, and special tokens last, which no row of equal logits begins with."""
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    words += [f"Ġ{number:x}" for number in range(16, 16 + size - len(words) - len(_SPECIAL))]
    vocabulary = {word: index for index, word in enumerate([*words, *_SPECIAL])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=_SPECIAL[-1], additional_special_tokens=list(_SPECIAL[:-1])
    )
