"""Tiny GGUF files, written from transformers models as llama.cpp's converter writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

VOCABULARY = 300
Tensors = dict[str, np.ndarray[Any, Any]]
Keys = dict[str, Any]

_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}  # fmt: skip
_TWO_NORMS = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip


def random_model(config: PreTrainedConfig, seed: int = 0) -> Any:
    """A model whose every weight, norms and biases too, is random enough to be seen in the logits."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model


def tensors_of(model: Any, arch: str) -> Tensors:
    """The model's weights by llama.cpp's names, turned and shifted as its converter does."""
    config = model.config
    tied = model.all_tied_weights_keys
    found: Tensors = {}
    for name, tensor in model.state_dict().items():
        if name in tied:
            continue
        values = tensor.numpy()
        experts = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj", name)
        if experts:
            if experts[2] == "down":
                found[f"blk.{experts[1]}.ffn_down_exps.weight"] = values
            else:
                half = values.shape[1] // 2
                found[f"blk.{experts[1]}.ffn_gate_exps.weight"] = values[:, :half]
                found[f"blk.{experts[1]}.ffn_up_exps.weight"] = values[:, half:]
            continue
        stem, ending = name.rsplit(".", 1)
        inner = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
        names = {**_NAMES, **(_TWO_NORMS if arch in ("gemma2", "gemma3", "olmo2") else {})}
        new = f"blk.{inner[1]}.{names[inner[2]]}" if inner else names[stem]
        if arch in ("llama", "granite") and new.endswith(("attn_q", "attn_k")):
            heads = config.num_attention_heads if new.endswith("q") else config.num_key_value_heads
            turned = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            values = turned.swapaxes(1, 2).reshape(values.shape)
        if arch.startswith("gemma") and new.endswith("norm"):
            values = values + 1
        if new.endswith("ffn_gate_inp_shexp"):
            values = values[0]
        found[f"{new}.{ending}"] = values
    return found


def keys_of(config: Any, arch: str, **more: Any) -> Keys:
    """What llama.cpp's converter says of such a model; `more` are further keys of the architecture, dots as `__`."""
    keys: Keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
    }
    keys |= {name.replace("__", "."): value for name, value in more.items()}
    named = {f"{arch}.{name}": value for name, value in keys.items() if value is not None}
    return {"general.architecture": arch, "general.name": "tiny", "general.file_type": 0, **named}


def byte_level_keys(pre: str = "gpt-2", size: int = VOCABULARY, **more: Any) -> Keys:
    """A vocabulary of three special tokens, all bytes, and merges of letters."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["t h", "th e", "Ġ the", "1 2", "Ġ 1", "a n", "Ġ a", "Ġa n"]
    tokens = ["<|bos|>", "<|eos|>", "<|pad|>", *alphabet, *(merge.replace(" ", "") for merge in merges)]
    types = [3, 3, 3, *[1] * (len(tokens) - 3)]
    while len(tokens) < size:
        types.append(5)
        tokens.append(f"[PAD{len(tokens)}]")
    keys: Keys = {
        "model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges,
        "bos_token_id": 0, "eos_token_id": 1, "padding_token_id": 2, **more,
    }  # fmt: skip
    return {f"tokenizer.ggml.{name}": value for name, value in keys.items() if value is not None}


def write(file: Path, keys: Keys, tensors: Tensors, encode: Callable[[str, Any], Any] | None = None) -> Path:
    """Write a GGUF file of one part. `encode` may turn a tensor into (bytes, type) to have it quantised."""
    file.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(file, keys["general.architecture"])
    for name, value in keys.items():
        _add(writer, name, value)
    for name, values in tensors.items():
        encoded = encode(name, values) if encode is not None else None
        if encoded is None:
            writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
        else:
            writer.add_tensor(name, encoded[0], raw_dtype=encoded[1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def write_parts(folder: Path, stem: str, keys: Keys, tensors: Tensors, count: int) -> list[Path]:
    """The same model in `count` files, as llama-gguf-split writes them."""
    names = list(tensors)
    files = []
    for number in range(count):
        chosen = names[number * len(names) // count : (number + 1) * len(names) // count]
        split: Keys = {"split.no": number, "split.count": count, "split.tensors.count": len(names)}
        own = {**keys, **split} if number == 0 else {"general.architecture": keys["general.architecture"], **split}
        file = folder / f"{stem}-{number + 1:05}-of-{count:05}.gguf"
        files.append(write(file, own, {name: tensors[name] for name in chosen}))
    return files


def _add(writer: Any, name: str, value: Any) -> None:
    if name == "general.architecture":
        return
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif name.startswith("split.") and name != "split.tensors.count":
        writer.add_uint16(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    elif isinstance(value, Iterable):
        writer.add_array(name, list(value))
    else:
        raise TypeError(f"{name}: {value!r}")
