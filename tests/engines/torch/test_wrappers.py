"""Wrappers around a language model are loaded without their towers, from either layout of their files.

That their text is the wrapper's own is shown with that of every family, in test_families.py.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engines.errors import ModelError
from engines.models import ModelFiles
from engines.torch.linear import PackedLinear, packed_head_bytes
from engines.torch.loader import load_runner
from engines.torch.memory import state_bytes, weight_bytes
from engines.torch.runner import Row
from engines.torch.support import check_supported
from engines.torch.wrappers import left_out
from tests.engines.torch.wrapped import WRAPPERS, Wrapper

IDS = [5, 17, 60, 3, 99, 2]


@pytest.fixture(
    params=[pytest.param(w, marks=pytest.mark.slow if w.slow else ()) for w in WRAPPERS], ids=lambda w: w.name
)
def wrapper(request: pytest.FixtureRequest) -> Wrapper:
    chosen: Wrapper = request.param
    return chosen


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(torch.tensor([IDS])).logits[0]
    return found


def test_towers_are_left_out_and_named(wrapper: Wrapper, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = wrapper.make_model()
    whole.save_pretrained(tmp_path)
    with caplog.at_level(logging.INFO, "engines.torch.loader"):
        runner = load_runner(ModelFiles("tiny", tmp_path), num_slots=1, slot_length=32, device="cpu")
    text = sum(tensor.numel() for tensor in whole.get_decoder().state_dict().values())
    head = whole.get_output_embeddings().weight
    if head is not whole.get_input_embeddings().weight:
        text += head.numel()
    small = {name: p.numel() for name, p in whole.named_parameters() if name.endswith("image_newline")}
    counted = weight_bytes(tmp_path, torch.float32, left_out(whole.config))
    assert counted == 4 * (text + sum(small.values()))
    loaded = {name for name, _ in runner.model.named_parameters()}
    assert not [name for name in loaded if re.search("visi|visual|connector|projector|merger", name)]
    if whole.config.model_type not in ("qwen3_5", "qwen3_5_moe"):  # transformers itself leaves their towers out
        (told,) = [record.getMessage() for record in caplog.records if "left out" in record.message]
        assert re.search("visual|vision_tower|vision_model", told)
        towers = sum(left_out(whole.config)(name) for name in load_file(tmp_path / "model.safetensors"))
        assert told.startswith(f"tiny: {towers} tensors of ")
    torch.testing.assert_close(runner.forward([Row(0, 0, IDS)])[0], logits(whole), rtol=1e-4, atol=1e-4)
    if runner.takes_trees:
        assert state_bytes(whole.config, torch.float32) == 0
    else:
        assert state_bytes(whole.config, torch.float32) > 0


@pytest.mark.parametrize(
    ("name", "renamed"),
    [
        ("Qwen 2.5 VL", [(r"^model\.language_model\.", "model."), (r"^model\.visual\.", "visual.")]),
        (
            "LLaVA",
            [
                (r"^model\.language_model\.", "language_model.model."),
                (r"^lm_head\.", "language_model.lm_head."),
                (r"^model\.", ""),
            ],
        ),
    ],
)
def test_both_layouts_of_files(name: str, renamed: list[tuple[str, str]], tmp_path: Path) -> None:
    """That of the published files, and the one that transformers has in memory."""
    wrapper = next(wrapper for wrapper in WRAPPERS if wrapper.name == name)
    whole = wrapper.make_model()
    whole.save_pretrained(tmp_path)
    inside = {name: tensor.contiguous() for name, tensor in whole.state_dict().items()}
    published = {}
    for stored, tensor in inside.items():
        for pattern, word in renamed:
            if re.search(pattern, stored):
                stored = re.sub(pattern, word, stored)
                break
        published[stored] = tensor
    assert published.keys() != inside.keys()
    for tensors in (inside, published):
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        runner = load_runner(ModelFiles("tiny", tmp_path), num_slots=1, slot_length=32, device="cpu")
        torch.testing.assert_close(runner.forward([Row(0, 0, IDS)])[0], logits(whole), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("change", ["missing", "another shape", "no place"])
def test_a_wrappers_text_is_whole_or_refused(change: str, tmp_path: Path) -> None:
    wrapper = next(wrapper for wrapper in WRAPPERS if wrapper.name == "LLaVA")
    wrapper.make_model().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if name.endswith("layers.1.mlp.up_proj.weight") and "vision" not in name)
    if change == "missing":
        del tensors[name]
    elif change == "another shape":
        tensors[name] = tensors[name][:8].contiguous()
    else:
        tensors[name.replace("up_proj", "side_proj")] = tensors[name].clone()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    message = {"missing": "1 tensors are missing", "another shape": "has shape", "no place": "have no place"}[change]
    with pytest.raises(ModelError, match=f"tiny: .*{message}"):
        load_runner(ModelFiles("tiny", tmp_path), num_slots=1, device="cpu")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (transformers.PaliGemmaConfig(), r"paligemma is a wrapper around a language model \(gemma\) .* engine vllm"),
        (transformers.JanusConfig(), r"janus is a wrapper around a language model \(llama\) .* engine vllm"),
        (transformers.Qwen2AudioConfig(), r"qwen2_audio is a wrapper around a language model .* engine vllm"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_wrappers_that_are_not_served(config: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        check_supported(config, 128)


def test_a_tied_head_is_counted_once_more_where_it_is_packed(tmp_path: Path) -> None:
    wrapper = next(wrapper for wrapper in WRAPPERS if wrapper.name == "LLaVA")
    tied = Wrapper("tied", wrapper.config, wrapper.model, wrapper.text, wrapper.vision, wrapper.text_type,
                   wrapper.vision_type, {"tie_word_embeddings": True})  # fmt: skip
    whole = tied.make_model()
    whole.save_pretrained(tmp_path)
    runner = load_runner(ModelFiles("tiny", tmp_path), num_slots=1, slot_length=32, device="cpu")
    head = runner.model.get_output_embeddings()
    assert packed_head_bytes(whole.config, torch.float32, torch.device("cpu")) == (
        100 * 32 * 4 if isinstance(head, PackedLinear) else 0
    )
