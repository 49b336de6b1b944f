"""Quantised checkpoints: what is dequantised is dequantised rightly, and scales that nobody reads are a refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GptOssConfig

from engines.errors import ModelError
from engines.models import ModelFiles
from engines.torch.loader import load_runner
from engines.torch.memory import weight_bytes
from engines.torch.quantization import DEQUANTISING_BYTES
from engines.torch.runner import Row
from testing.tiny_models import make_tiny_model
from tests.engines.torch.families import FAMILIES, make_model

BLOCK = 16
IDS = [5, 17, 60, 3, 99, 200]


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return ModelFiles("tiny", make_tiny_model(tmp_path / "tiny", layers=1))


def to_eight_bits(files: ModelFiles, scale_name: str, block: int | None) -> dict[str, Tensor]:
    """Quantise the layers' matrices to FP8, one scale a block (or a tensor); returns what they then stand for."""
    path = files.folder / "model.safetensors"
    stored: dict[str, Tensor] = {}
    meant: dict[str, Tensor] = {}
    for name, tensor in load_file(path).items():
        stored[name] = meant[name] = tensor
        if not name.endswith("proj.weight"):
            continue
        rows, columns = tensor.shape
        high, wide = (block, block) if block else (rows, columns)
        blocks = tensor.view(rows // high, high, columns // wide, wide)
        scales = blocks.abs().amax(dim=(1, 3)) / 448
        eight = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
        stored[name] = eight.view(rows, columns)
        meant[name] = (eight.float() * scales[:, None, :, None]).view(rows, columns)
        stored[name.removesuffix("weight") + scale_name] = scales if block else scales.view(())
    save_file(stored, path, metadata={"format": "pt"})
    return meant


def describe(files: ModelFiles, **described: Any) -> None:
    path = files.folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": described}))


def test_scales_of_blocks_are_applied(files: ModelFiles) -> None:
    plain = AutoModelForCausalLM.from_pretrained(files.folder, dtype=torch.float32)
    meant = to_eight_bits(files, "weight_scale_inv", BLOCK)
    describe(files, quant_method="fp8", weight_block_size=[BLOCK, BLOCK], activation_scheme="dynamic", fmt="e4m3")
    plain.load_state_dict(meant)
    with torch.inference_mode():
        expected = plain(torch.tensor([IDS])).logits[0]
    runner = load_runner(files, num_slots=1, device="cpu")
    torch.testing.assert_close(runner.forward([Row(0, 0, IDS)])[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, r"one scale a tensor \(AutoFP8\)"),
        (
            {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [BLOCK, BLOCK]},
            "static scales of activations",
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "quantised with modelopt"),
        ({"quant_method": "of-next-year"}, "of-next-year"),
        ({"bits": 4}, "an unnamed method"),
        ({"quant_method": "nvfp4"}, "NVFP4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "NVFP4"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"format": "nvfp4-pack-quantized"}}},
            "NVFP4",
        ),
    ],
)
def test_quantisers_that_would_lose_their_scales(files: ModelFiles, described: dict[str, Any], message: str) -> None:
    to_eight_bits(files, "weight_scale", None)
    describe(files, **described)
    with pytest.raises(ModelError, match=f"tiny: .*{message}.*choose engine vllm"):
        load_runner(files, num_slots=1, device="cpu")


def test_modelopt_may_leave_the_configuration_alone(files: ModelFiles) -> None:
    to_eight_bits(files, "weight_scale", None)
    file = files.folder / "hf_quant_config.json"
    file.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}))
    with pytest.raises(ModelError, match=r"modelopt to FP8 \(hf_quant_config.json\).*choose engine vllm"):
        load_runner(files, num_slots=1, device="cpu")
    file.write_text("no JSON")
    with pytest.raises(ModelError, match="unknown method"):
        load_runner(files, num_slots=1, device="cpu")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, torch.int8, torch.int32])
def test_few_bits_without_a_quantiser(files: ModelFiles, dtype: torch.dtype) -> None:
    path = files.folder / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name].to(dtype)}, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"tensor {name} is stored as .* nothing .* says how it was quantised"):
        load_runner(files, num_slots=1, device="cpu")


FOUR_BITS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What three bits stand for in E2M1 (OCP Microscaling Formats 1.0); the fourth is the sign."""


@pytest.fixture
def packed(tmp_path: Path) -> tuple[ModelFiles, dict[str, Tensor], dict[str, Tensor]]:
    """A gpt-oss whose experts lie in MXFP4 as in the published files: its folder, those tensors, and all that they
    stand for.

    Of each expert 32 inputs of an output are a block: 16 bytes of two numbers each, the lower half first, and one
    exponent of two, 127 above its value.
    """
    family = next(family for family in FAMILIES if family.name == "gpt-oss")
    wide = {"hidden_size": 64, "intermediate_size": 32, "head_dim": 16}
    model = make_model(GptOssConfig(**{**family.base, **family.options, **wide}))
    model.save_pretrained(tmp_path)
    meant, stored = load_file(tmp_path / "model.safetensors"), {}
    numbers = np.random.default_rng(5)
    for name in [name for name in meant if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = meant[name].shape
        blocks = numbers.integers(0, 256, (experts, outputs, inputs // 32, 16), dtype=np.uint8)
        scales = numbers.integers(117, 124, (experts, outputs, inputs // 32), dtype=np.uint8)
        values = np.zeros((experts, outputs, inputs), np.float32)
        for place in np.ndindex(*blocks.shape):
            byte, scale = int(blocks[place]), 2.0 ** (int(scales[place[:3]]) - 127)
            for half, four in enumerate((byte & 15, byte >> 4)):
                value = FOUR_BITS[four & 7] * scale * (-1 if four & 8 else 1)
                values[place[0], place[1], place[2] * 32 + place[3] * 2 + half] = value
        meant[name] = torch.from_numpy(values).transpose(1, 2).contiguous()
        stored |= {f"{name}_blocks": torch.from_numpy(blocks), f"{name}_scales": torch.from_numpy(scales)}
    files = ModelFiles("tiny", tmp_path)
    save_packed(files, meant, stored)
    describe(files, quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "lm_head"])
    return files, stored, meant


def save_packed(files: ModelFiles, meant: dict[str, Tensor], stored: dict[str, Tensor]) -> None:
    plain = {name: tensor for name, tensor in meant.items() if not name.endswith(("gate_up_proj", "down_proj"))}
    save_file({**plain, **stored}, files.folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mxfp4_is_dequantised(
    packed: tuple[ModelFiles, dict[str, Tensor], dict[str, Tensor]], dtype: Literal["float32", "bfloat16"]
) -> None:
    files, stored, meant = packed
    expected = make_model(AutoConfig.from_pretrained(files.folder))
    expected.load_state_dict(meant)
    runner = load_runner(files, num_slots=1, slot_length=32, device="cpu", dtype=dtype)
    loaded = dict(runner.model.named_parameters())
    kind = getattr(torch, dtype)
    for name in {name.rpartition("_")[0] for name in stored}:
        assert torch.equal(loaded[name], meant[name].to(kind))
    assert {parameter.dtype for parameter in loaded.values()} == {kind}
    ids = [token % 100 for token in IDS]
    if dtype == "float32":
        with torch.inference_mode():
            logits = expected(torch.tensor([ids])).logits[0]
        torch.testing.assert_close(runner.forward([Row(0, 0, ids)])[0], logits, rtol=1e-4, atol=1e-4)


def test_mxfp4_is_counted_as_what_it_becomes(
    packed: tuple[ModelFiles, dict[str, Tensor], dict[str, Tensor]],
) -> None:
    files, _, meant = packed
    largest = max(tensor.numel() for name, tensor in meant.items() if name.endswith("proj"))
    numbers = sum(tensor.numel() for tensor in meant.values())
    assert weight_bytes(files.folder, torch.float32) == 4 * numbers + DEQUANTISING_BYTES * largest


@pytest.mark.parametrize("left_out", ["_blocks", "_scales"])
def test_mxfp4_without_one_of_its_halves(
    packed: tuple[ModelFiles, dict[str, Tensor], dict[str, Tensor]], left_out: str
) -> None:
    files, stored, meant = packed
    gone = next(name for name in stored if name.endswith(f"gate_up_proj{left_out}"))
    save_packed(files, meant, {name: tensor for name, tensor in stored.items() if name != gone})
    with pytest.raises(ModelError, match=f"tiny: tensor {gone.removesuffix(left_out)} can't be made of"):
        load_runner(files, num_slots=1, device="cpu")


def test_mxfp4_of_other_shapes(packed: tuple[ModelFiles, dict[str, Tensor], dict[str, Tensor]]) -> None:
    files, stored, meant = packed
    name = next(name for name in stored if name.endswith("gate_up_proj_scales"))
    save_packed(files, meant, {**stored, name: stored[name][:, :, :1].contiguous()})
    with pytest.raises(ModelError, match=f"tiny: tensor {name.removesuffix('_scales')} can't be made of"):
        load_runner(files, num_slots=1, device="cpu")
