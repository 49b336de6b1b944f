"""What a tokenizer says about itself on the wire, and the fingerprints of vocabularies and weights."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from engines.errors import ModelError
from engines.fingerprint import fingerprint, weights_digest
from engines.models import ModelFiles
from engines.tokenizer import (
    fingerprint_vocabulary,
    load_tokenizer,
    special_token_ids,
    stop_token_ids,
    tokenizer_info,
    vocabulary_of,
)
from testing.tiny_models import CHAT_TEMPLATE, make_tiny_model


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return ModelFiles("tiny", make_tiny_model(tmp_path / "tiny", layers=1))


def test_tokenizer_info_is_enough_to_speak_the_language(files: ModelFiles) -> None:
    tokenizer = load_tokenizer(files)
    info = tokenizer_info(files, tokenizer, stop_ids=[2], logits_size=400, context_length=128)
    text = "A draft model: naïve 🦊"
    ids = Tokenizer.from_str(info.tokenizer_json).encode(text).ids
    assert ids == tokenizer.encode(text)
    assert Tokenizer.from_str(info.tokenizer_json).decode(ids) == text
    assert info.chat_template == CHAT_TEMPLATE
    assert (info.bos_token, info.eos_token) == ("<|endoftext|>", "<|im_end|>")
    assert info.special_tokens["eos_token"] == "<|im_end|>"
    assert (info.vocabulary.size, info.vocabulary.logits_size) == (384, 400)
    assert special_token_ids(tokenizer) == [0, 1, 2]


def test_of_several_chat_templates_the_default_counts(files: ModelFiles) -> None:
    tokenizer = load_tokenizer(files)
    tokenizer.chat_template = {"default": "D", "tool_use": "T"}
    info = tokenizer_info(files, tokenizer, stop_ids=[], logits_size=384, context_length=128)
    assert (info.chat_template, info.tool_chat_template) == ("D", "T")
    tokenizer.chat_template = None
    info = tokenizer_info(files, tokenizer, stop_ids=[], logits_size=384, context_length=128)
    assert (info.chat_template, info.tool_chat_template) == (None, None)


def test_a_processors_template_stands_in_for_one(files: ModelFiles) -> None:
    path = files.folder / "tokenizer_config.json"
    described = {**json.loads(path.read_text())}
    described.pop("chat_template", None)
    path.write_text(json.dumps(described))
    (files.folder / "chat_template.jinja").unlink(missing_ok=True)
    beside = files.folder / "chat_template.json"
    for text, expected in (
        (None, None), ("{}", None), ("no JSON", None), ('{"chat_template": 5}', None), ('{"chat_template": "T"}', "T")
    ):  # fmt: skip
        if text is not None:
            beside.write_text(text)
        assert load_tokenizer(files).chat_template == expected


@pytest.mark.parametrize("kept", ["list", "folder"])
def test_named_chat_templates_are_found_wherever_they_are_kept(files: ModelFiles, kept: str) -> None:
    path = files.folder / "tokenizer_config.json"
    (files.folder / "chat_template.jinja").unlink(missing_ok=True)
    described = json.loads(path.read_text())
    described.pop("chat_template", None)
    if kept == "list":
        described["chat_template"] = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    else:
        (files.folder / "chat_template.jinja").write_text("D")
        (files.folder / "additional_chat_templates").mkdir()
        (files.folder / "additional_chat_templates" / "tool_use.jinja").write_text("T")
    path.write_text(json.dumps(described))
    info = tokenizer_info(files, load_tokenizer(files), stop_ids=[], logits_size=384, context_length=128)
    assert (info.chat_template, info.tool_chat_template) == ("D", "T")


@pytest.mark.parametrize("named", ["LlamaTokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast", "Qwen2Tokenizer"])
def test_tokenizer_json_counts_and_not_the_class_named_beside_it(files: ModelFiles, named: str) -> None:
    """As in DeepSeek-R1-Distill-Llama and deepseek-coder: a byte-level file, and the class of another kind."""
    path = files.folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": named}))
    written = Tokenizer.from_file(str(files.folder / "tokenizer.json"))
    tokenizer = load_tokenizer(files)
    text = "A draft  model's naïve\n 🦊 12345"
    assert tokenizer.encode(text) == written.encode(text).ids
    assert tokenizer.decode(written.encode(text).ids) == text


def test_a_broken_tokenizer_is_refused_in_words(files: ModelFiles) -> None:
    (files.folder / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(ModelError, match=r"tiny: its tokenizer\.json could not be loaded"):
        load_tokenizer(files)


def test_a_missing_tokenizer_is_refused_in_a_line(files: ModelFiles) -> None:
    (files.folder / "tokenizer.json").unlink()
    (files.folder / "tokenizer_config.json").unlink()
    with pytest.raises(
        ModelError, match=r"^tiny: its tokenizer \(there is no tokenizer\.json\) could not be loaded: [^\n]+$"
    ):
        load_tokenizer(files)


def test_stop_ids_are_the_tokenizers_and_the_generation_configs() -> None:
    generation = SimpleNamespace(eos_token_id=[7, 9])
    config = SimpleNamespace(eos_token_id=8)
    assert stop_token_ids(SimpleNamespace(eos_token_id=2), config, generation) == [2, 7, 9]
    silent = SimpleNamespace(eos_token_id=None)
    assert stop_token_ids(SimpleNamespace(eos_token_id=2), config, silent) == [2, 8]
    inner = SimpleNamespace(eos_token_id=None, text_config=SimpleNamespace(eos_token_id=5))
    assert stop_token_ids(silent, inner, None) == [5]
    nothing = SimpleNamespace(eos_token_id=None)
    assert stop_token_ids(nothing, nothing, None) == []


def test_vocabulary_fingerprint_is_over_pairs(files: ModelFiles) -> None:
    assert fingerprint_vocabulary({"a": 0, "b": 1}) == fingerprint_vocabulary({"b": 1, "a": 0})
    assert fingerprint_vocabulary({"a": 0, "b": 1}) != fingerprint_vocabulary({"a": 1, "b": 0})
    assert fingerprint_vocabulary({"ab": 0, "c": 1}) != fingerprint_vocabulary({"a": 0, "bc": 1})
    tokenizer = load_tokenizer(files)
    before = vocabulary_of(tokenizer, 384)
    # Spacing in the file is no difference; an added token is.
    path = files.folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=7))
    assert vocabulary_of(load_tokenizer(files), 500).fingerprint == before.fingerprint
    tokenizer.add_tokens(["<extra>"])
    after = vocabulary_of(tokenizer, 384)
    assert after.fingerprint != before.fingerprint
    assert after.size == before.size + 1


def test_a_model_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="lonely"):
        load_tokenizer(ModelFiles("lonely", tmp_path))


def test_weights_digest_sees_every_tensor_and_the_configuration(files: ModelFiles) -> None:
    digest = weights_digest(files.folder)
    path = files.folder / "model.safetensors"
    tensors = load_file(path)
    for name in tensors:
        changed = {**tensors, name: tensors[name].clone()}
        changed[name].view(-1)[0] += 1.0
        save_file(changed, path, metadata={"format": "pt"})
        assert weights_digest(files.folder) != digest, name
    save_file(tensors, path, metadata={"format": "pt"})
    assert weights_digest(files.folder) == digest
    config = json.loads((files.folder / "config.json").read_text())
    (files.folder / "config.json").write_text(json.dumps({**config, "transformers_version": "0"}))
    assert weights_digest(files.folder) == digest
    (files.folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.1}))
    assert weights_digest(files.folder) != digest
    assert torch.equal(load_file(path)["lm_head.weight"], tensors["lm_head.weight"])


def test_fingerprint_has_every_part(files: ModelFiles) -> None:
    base = {"engine": "torch-1", "dtype": "float32", "device": "cpu", "numerics": "2 threads"}
    seen = {fingerprint(files.folder, **base)}
    for part in base:
        seen.add(fingerprint(files.folder, **{**base, part: "other"}))
    assert len(seen) == 5
