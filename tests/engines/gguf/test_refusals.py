"""What a GGUF file may not lack, and may not say without being heard: refused by name, and nothing is kept of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from engines.errors import ModelError
from engines.gguf.convert import CONVERSION, convert_gguf
from engines.models import resolve_model
from engines.tokenizer import load_tokenizer, tokenizer_info
from engines.torch.loader import load_runner
from engines.torch.runner import Row
from server.text.tokenizer import TextTokenizer
from tests.engines.gguf.gguf_files import (
    VOCABULARY,
    Keys,
    Tensors,
    byte_level_keys,
    keys_of,
    random_model,
    tensors_of,
    write,
    write_parts,
)

IDS = [5, 17, 60, 3, 99, 200]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def model() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, pad_token_id=None,
    )  # fmt: skip
    return random_model(config)


@pytest.fixture
def keys(model: Any) -> Keys:
    return keys_of(model.config, "llama") | byte_level_keys()


@pytest.fixture
def tensors(model: Any) -> Tensors:
    return tensors_of(model, "llama")


def expected(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([IDS])).logits[0]
    return logits


def served(name: str) -> torch.Tensor:
    return load_runner(resolve_model(name), num_slots=1, device="cpu").forward([Row(0, 0, IDS)])[0]


def kept(cache: Path) -> list[str]:
    return [path.name for path in cache.rglob("config.json")]


def refuse(file: Path, message: str, cache: Path) -> None:
    with pytest.raises(ModelError, match=message):
        resolve_model(str(file))
    assert kept(cache) == []


def test_a_whole_file_is_served(tmp_path: Path, model: Any, keys: Keys, tensors: Tensors) -> None:
    file = write(tmp_path / "tiny.gguf", keys, tensors)
    torch.testing.assert_close(served(str(file)), expected(model), rtol=1e-4, atol=1e-4)


def test_quantised_blocks_are_dequantised(tmp_path: Path, model: Any, keys: Keys, tensors: Tensors) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0

    def encode(name: str, values: Any) -> Any:
        if values.ndim == 1 or "ffn" not in name:
            return None
        return gguf.quantize(np.ascontiguousarray(values), kind), kind

    file = write(tmp_path / "tiny.gguf", keys, tensors, encode)
    torch.testing.assert_close(served(str(file)), expected(model), rtol=0.05, atol=0.3)


@pytest.mark.parametrize("named", ["first", "last", "folder"])
def test_parts_are_one_model(named: str, tmp_path: Path, model: Any, keys: Keys, tensors: Tensors) -> None:
    parts = write_parts(tmp_path / "split", "tiny", keys, tensors, 3)
    name = {"first": parts[0], "last": parts[2], "folder": parts[0].parent}[named]
    torch.testing.assert_close(served(str(name)), expected(model), rtol=1e-4, atol=1e-4)
    assert resolve_model(str(name)).id == ("split" if named == "folder" else "tiny")


def test_parts_that_are_not_all_there(tmp_path: Path, cache: Path, keys: Keys, tensors: Tensors) -> None:
    parts = write_parts(tmp_path, "tiny", keys, tensors, 3)
    parts[1].rename(tmp_path / "elsewhere")
    refuse(parts[0], "tiny-00001-of-00003.gguf is one of 3 parts, and tiny-00002-of-00003.gguf is not beside it", cache)
    refuse(parts[2], "is not beside it", cache)
    parts[0].rename(tmp_path / "renamed.gguf")
    refuse(tmp_path / "renamed.gguf", "renamed.gguf declares 3 parts", cache)


def test_parts_that_changed_places_or_models(tmp_path: Path, cache: Path, keys: Keys, tensors: Tensors) -> None:
    parts = write_parts(tmp_path, "tiny", keys, tensors, 2)
    parts[1].write_bytes(parts[0].read_bytes())
    refuse(parts[0], "declares itself part 1", cache)
    fewer = dict(list(tensors.items())[:-1])
    write_parts(tmp_path / "other", "tiny", keys, fewer, 2)[1].rename(parts[1])
    refuse(parts[0], rf"hold {len(tensors) - 1} tensors, but the metadata declares {len(tensors)}", cache)


def test_of_two_models_in_a_folder_one_must_be_named(tmp_path: Path, keys: Keys, tensors: Tensors) -> None:
    write_parts(tmp_path / "both", "one", keys, tensors, 2)
    write(tmp_path / "both" / "two.gguf", keys, tensors)
    with pytest.raises(ModelError, match="holds 2 GGUF models"):
        resolve_model(str(tmp_path / "both"))


def test_any_tensor_that_is_missing_is_named(tmp_path: Path, cache: Path, keys: Keys, tensors: Tensors) -> None:
    for number, name in enumerate(tensors):
        if name == "output.weight":
            continue  # its absence is how a tied model is written
        fewer = {other: values for other, values in tensors.items() if other != name}
        refuse(write(tmp_path / f"{number}.gguf", keys, fewer), f"{name} is missing", cache)


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q_norm.weight", "blk.2.ffn_up.weight", "blk.0.attn_q.scale", "blk.0.ffn_up.bias", "cls.weight"]
)
def test_tensors_that_nobody_reads(name: str, tmp_path: Path, cache: Path, keys: Keys, tensors: Tensors) -> None:
    more = {**tensors, name: np.ones(8)}
    refuse(write(tmp_path / "tiny.gguf", keys, more), f"1 tensors .* no place in a llama model, {name}", cache)


def test_tensors_of_another_shape(tmp_path: Path, cache: Path, keys: Keys, tensors: Tensors) -> None:
    changed = {**tensors, "blk.1.ffn_down.weight": np.ones((32, 32))}
    refuse(write(tmp_path / "tiny.gguf", keys, changed), r"blk.1.ffn_down.weight has shape \[32, 32\]", cache)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama.attention.sliding_window": 64}, "says llama.attention.sliding_window, which is not known"),
        ({"llama.logit_scale": 2.0}, "llama.logit_scale"),
        ({"llama.pooling_type": 1}, "llama.pooling_type"),
        ({"llama.attention.causal": False}, "not causal"),
        ({"llama.attention.value_length": 4}, "keys and values of different lengths"),
        ({"llama.rope.dimension_count": 4}, "rotated in part"),
        ({"llama.attention.head_count_kv": [2, 1]}, "layers differ in llama.attention.head_count_kv"),
        ({"llama.rope.scaling.type": "spiral"}, "rotary scaling of type spiral"),
        ({"llama.rope.scaling.type": "longrope"}, "rope_factors_short.weight is missing"),
        ({"llama.rope.scaling.attn_factor": 2.0}, "attn_factor without yarn"),
        ({"llama.rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ({"llama.block_count": None}, "no llama.block_count"),
        ({"general.architecture": "mamba"}, "architecture mamba are not converted; these are: command-r, gemma"),
        ({"general.type": "adapter"}, "of type adapter"),
        ({"tokenizer.ggml.model": "rwkv"}, "kind rwkv"),
        ({"tokenizer.ggml.pre": "of-next-year"}, "way 'of-next-year'"),
        ({"tokenizer.ggml.pre": None}, "leaves out"),
        ({"tokenizer.ggml.tokens": None}, "no tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.curl": 1}, "says tokenizer.ggml.curl"),
        ({"tokenizer.ggml.eos_token_id": 5000}, "eos_token_id is 5000, of"),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}, "does not say which"),
    ],
)
def test_keys_that_would_be_dropped(
    changes: Keys, message: str, tmp_path: Path, cache: Path, keys: Keys, tensors: Tensors
) -> None:
    changed = {name: value for name, value in {**keys, **changes}.items() if value is not None}
    refuse(write(tmp_path / "tiny.gguf", changed, tensors), f"tiny.gguf: .*{message}", cache)


def test_harmless_keys_are_no_hindrance(tmp_path: Path, model: Any, keys: Keys, tensors: Tensors) -> None:
    more: Keys = {
        "llama.vocab_size": VOCABULARY, "llama.tensor_data_layout": "Meta AI original pth",
        "llama.expert_count": 0, "llama.expert_used_count": 0, "llama.rope.scaling.finetuned": True,
        "general.quantization_version": 2, "quantize.imatrix.file": "x", "mradermacher.convert_type": "hf",
        "tokenizer.ggml.fim_pre_token_id": 4,
    }  # fmt: skip
    file = write(tmp_path / "tiny.gguf", {**keys, **more}, tensors)
    torch.testing.assert_close(served(str(file)), expected(model), rtol=1e-4, atol=1e-4)


def test_no_gguf_file_and_a_truncated_one(tmp_path: Path, cache: Path, keys: Keys, tensors: Tensors) -> None:
    whole = write(tmp_path / "tiny.gguf", keys, tensors).read_bytes()
    file = tmp_path / "cut.gguf"
    for length in (8, 30, 2000, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        refuse(file, "cut.gguf is damaged or cut short", cache)
    for content in (b"", b"GG", b"no GGUF file at all", b"<!DOCTYPE html>"):
        file.write_bytes(content)
        refuse(file, "cut.gguf is not a GGUF file", cache)


@pytest.mark.parametrize(
    ("free", "message"),
    [
        ("engines.gguf.convert.free_host_bytes", "of memory are free"),
        ("shutil.disk_usage", "on the disk of .* are free"),
    ],
)
def test_what_does_not_fit_is_not_converted(
    tmp_path: Path, cache: Path, keys: Keys, tensors: Tensors, free: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "tiny.gguf", keys, tensors)
    numbers = sum(values.size for values in tensors.values())
    for room in (4 * numbers - 1, 4 * numbers):
        found = SimpleNamespace(free=room) if "disk" in free else room
        monkeypatch.setattr(free, lambda *_, found=found: found)
        if room < 4 * numbers:
            refuse(file, rf"it takes 0.00 GiB, and 0.00 GiB {message}; engine llama_cpp runs it as it is", cache)
        else:
            resolve_model(str(file))


@pytest.mark.parametrize("asked", [True, False])
def test_the_gateway_is_told_of_bos(asked: bool, tmp_path: Path, keys: Keys, tensors: Tensors) -> None:
    """What /v1/completions encodes with, after the converted folder was saved and read again."""
    changed = {**keys, "tokenizer.ggml.add_bos_token": asked}
    files = resolve_model(str(write(tmp_path / "tiny.gguf", changed, tensors)))
    info = tokenizer_info(files, load_tokenizer(files), stop_ids=[], logits_size=VOCABULARY, context_length=64)
    tokenizer = TextTokenizer(info)
    plain = tokenizer.encode("the", add_special_tokens=False)
    assert tokenizer.encode("the", add_special_tokens=True) == ([0, *plain] if asked else plain)


def test_conversions_of_another_way_are_not_used(
    tmp_path: Path, cache: Path, model: Any, keys: Keys, tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "tiny.gguf", keys, tensors)
    first = resolve_model(str(file)).folder
    assert first.name.startswith(f"{CONVERSION}-")
    monkeypatch.setattr("engines.gguf.convert.CONVERSION", CONVERSION + 1)
    assert resolve_model(str(file)).folder != first


def test_a_second_conversion_changes_nothing(tmp_path: Path, keys: Keys, tensors: Tensors) -> None:
    file = write(tmp_path / "tiny.gguf", keys, tensors)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        convert_gguf(file, tmp_path / name)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
