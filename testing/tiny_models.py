"""Tiny causal language models with random weights, written like real ones: safetensors, tokenizer, chat template."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GPTNeoXConfig,
    LlamaConfig,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from engines.model_building import build_model

Architecture = Literal["llama", "qwen2", "qwen3", "opt", "gpt_neox"]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "A draft model proposes tokens and a target model verifies them.",
    "def add(a, b):\n    return a + b\n",
    "Once upon a time there was a small village by the sea, where the fishermen told stories.",
    "What is the capital of France? The capital of France is Paris.",
]


def make_tiny_model(
    folder: Path,
    architecture: Architecture = "llama",
    *,
    layers: int = 2,
    hidden: int = 32,
    vocabulary: int = 384,
    context_length: int = 512,
    seed: int = 0,
    spread: float = 2.0,
) -> Path:
    """Write a random model to `folder`, the same bytes for the same arguments; returns `folder`.

    `spread` is about the standard deviation of a row of logits: 0 would be uniform, 10 nearly one-hot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(architecture, layers, hidden, vocabulary, context_length)
    _save(folder, config, seed, spread)
    tokenizer = make_tokenizer(vocabulary)
    tokenizer.save_pretrained(folder)
    return folder


def make_toy_model(folder: Path, *, vocabulary: int = 8, layers: int = 1, seed: int = 0, spread: float = 1.5) -> Path:
    """A llama whose few ids mean nothing and that has no tokenizer: for tests that enumerate distributions."""
    folder.mkdir(parents=True, exist_ok=True)
    config = _config("llama", layers, 16, vocabulary, 128)
    config.bos_token_id = config.eos_token_id = None
    _save(folder, config, seed, spread)
    return folder


def truncate_model(source: Path, folder: Path, layers: int) -> Path:
    """Write a model of the first ceil(layers / 2) and last floor(layers / 2) layers of `source`: a draft that agrees
    with it more often than chance. Tokenizer included; returns `folder`."""
    model = build_model(AutoModelForCausalLM.from_pretrained, source, dtype=torch.float32)
    stack = next(module for name, module in model.named_modules() if name.endswith("layers"))
    first = math.ceil(layers / 2)
    kept = [*range(first), *range(len(stack) - (layers - first), len(stack))]
    for index in reversed(range(len(stack))):
        if index not in kept:
            del stack[index]
    model.config.num_hidden_layers = layers
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = [model.config.layer_types[index] for index in kept]
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"):
        if (source / name).exists():
            (folder / name).write_bytes((source / name).read_bytes())
    return folder


def make_tokenizer(vocabulary: int = 384) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of at most `vocabulary` tokens (259 at least), with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
    )


def _config(
    architecture: Architecture, layers: int, hidden: int, vocabulary: int, context_length: int
) -> PreTrainedConfig:
    common = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": context_length,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    grouped = {**common, "intermediate_size": 3 * hidden, "num_key_value_heads": 2}
    if architecture == "llama":
        return LlamaConfig(**grouped, tie_word_embeddings=False)
    if architecture == "qwen2":
        return Qwen2Config(**grouped, tie_word_embeddings=True)
    if architecture == "qwen3":
        return Qwen3Config(**grouped, head_dim=16, tie_word_embeddings=True)
    if architecture == "opt":
        return OPTConfig(**common, ffn_dim=3 * hidden, word_embed_proj_dim=hidden, activation_function="relu")
    if architecture == "gpt_neox":
        return GPTNeoXConfig(**common, intermediate_size=3 * hidden, tie_word_embeddings=False)
    raise ValueError(f"no tiny {architecture}")


def _save(folder: Path, config: PreTrainedConfig, seed: int, spread: float) -> None:
    model = build_model(AutoModelForCausalLM.from_config, config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "norm" in name:
                continue
            fan_in = parameter.shape[-1]
            scale = 1.0 if parameter.dim() == 1 or "embed" in name else 1.5 / math.sqrt(fan_in)
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * (0.1 if parameter.dim() == 1 else scale))
        probe = torch.randint(0, config.vocab_size, (1, 64), generator=generator)
        head = model.get_output_embeddings().weight
        head.mul_(spread / model(probe).logits.std(dim=-1).mean())
    model.save_pretrained(folder)
