"""Tiny GGUF files of random weights, quantised, with the vocabulary of the tiny models of testing/tiny_models.py."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from testing.tiny_models import CHAT_TEMPLATE, make_tiny_model
from tests.engines.gguf.gguf_files import Keys, keys_of, tensors_of, write


def require_llama_cpp() -> None:
    """Skip with a reason if llama-cpp-python is not installed; fail instead if REQUIRE_LLAMA_CPP is set (CI)."""
    if find_spec("llama_cpp") is None and not os.environ.get("REQUIRE_LLAMA_CPP"):
        pytest.skip("llama-cpp-python is not installed: make install-llama-cpp")


K_QUANTS = {"Q4_K": "Q4_K_S", "Q6_K": "Q6_K"}
"""Types of 256 weights a block, which `gguf` reads but can't write, and the quantiser's names for files of them."""


def as_k_quants(whole: Path, file: Path, kind: str) -> Path:
    """A float32 file's matrices in one of these types, by llama.cpp's own quantiser."""
    from engines.llama_cpp.library import library

    api = library().api
    params = api.llama_model_quantize_default_params()
    params.ftype = getattr(api, f"LLAMA_FTYPE_MOSTLY_{K_QUANTS[kind]}")
    params.nthread, params.pure = 1, True
    code = api.llama_model_quantize(str(whole).encode(), str(file).encode(), ctypes.byref(params))
    assert code == 0, library().log.reason()
    return file


def encoder(kind: str) -> Callable[[str, Any], Any]:
    """What writes matrices in this type and leaves vectors in float32 (`write`'s `encode`)."""

    def encode(name: str, values: Any) -> Any:
        if values.ndim < 2 or kind == "F32":
            return None
        chosen = gguf.GGMLQuantizationType[kind]
        return gguf.quants.quantize(values, chosen), chosen

    return encode


def as_gguf(folder: Path, file: Path, kind: str = "Q4_1", **more: Any) -> Path:
    """A tiny llama of `folder` as a GGUF file whose matrices are of this type; `more` are further keys."""
    if kind in K_QUANTS:
        return as_k_quants(as_gguf(folder, file.with_suffix(".f32"), "F32", **more), file, kind)
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
