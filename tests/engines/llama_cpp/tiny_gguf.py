"""Tiny GGUF files of random weights, quantised, with the vocabulary of the tiny models of testing/tiny_models.py."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from testing.tiny_models import CHAT_TEMPLATE, make_tiny_model
from tests.engines.gguf.gguf_files import Keys, keys_of, tensors_of, write


def require_llama_cpp() -> None:
    """Skip with a reason if llama-cpp-python is not installed; fail instead if REQUIRE_LLAMA_CPP is set (CI)."""
    if find_spec("llama_cpp") is None and not os.environ.get("REQUIRE_LLAMA_CPP"):
        pytest.skip("llama-cpp-python is not installed: make install-llama-cpp")


K_QUANTS = {"Q4_K": (0, 2), "Q6_K": (208,)}
"""Types of 256 weights a block, which `gguf` reads but can't write: where in a block its scales (float16) are."""


def random_blocks(shape: tuple[int, ...], kind: Any) -> Any:
    """Blocks of random bits and small scales instead of weights of this shape: any bits are weights in K-quants."""
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    draw = np.random.default_rng(shape)
    blocks = draw.integers(0, 256, (shape[0], shape[1] // weights, size), dtype=np.uint8)
    for place in K_QUANTS[kind.name]:
        scales = draw.uniform(0.0002, 0.0006, blocks.shape[:2]).astype(np.float16)
        blocks[..., place : place + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(shape[0], -1)


def encoder(kind: str) -> Callable[[str, Any], Any]:
    """What writes matrices in this type and leaves vectors in float32 (`write`'s `encode`)."""

    def encode(name: str, values: Any) -> Any:
        if values.ndim < 2 or kind == "F32":
            return None
        chosen = gguf.GGMLQuantizationType[kind]
        if kind in K_QUANTS:
            return random_blocks(values.shape, chosen), chosen
        return gguf.quants.quantize(values, chosen), chosen

    return encode


def as_gguf(folder: Path, file: Path, kind: str = "Q4_1", **more: Any) -> Path:
    """A tiny llama of `folder` as a GGUF file whose matrices are of this type; `more` are further keys."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    keys = keys_of(model.config, "llama", rope__dimension_count=model.config.hidden_size // 4)
    keys |= vocabulary_of(folder, model.config.vocab_size) | more
    return write(file, keys, tensors_of(model, "llama"), encoder(kind))


def vocabulary_of(folder: Path, rows: int) -> Keys:
    """Of a folder's tokenizer, as llama.cpp's converter writes it: rows of logits without a token become [PAD…]."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    entries = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
    special = set(tokenizer.added_tokens_decoder)
    names = [entries.get(token_id, f"[PAD{token_id}]") for token_id in range(rows)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": [3 if i in special else 1 if i in entries else 5 for i in range(rows)],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in described["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": tokenizer.bos_token_id,
        "tokenizer.ggml.eos_token_id": tokenizer.eos_token_id,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def tiny_gguf(folder: Path, kind: str = "Q4_1", **settings: Any) -> Path:
    """A tiny model written to `folder`, as safetensors and as the GGUF file that is returned."""
    made = make_tiny_model(folder / "model", **{"hidden": 64, "layers": 2, **settings})
    return as_gguf(made, folder / f"tiny-{kind}.gguf", kind)
