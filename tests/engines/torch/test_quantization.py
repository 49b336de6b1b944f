"""Quantised checkpoints: what is dequantised is dequantised rightly, and scales that nobody reads are a refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from engines.errors import ModelError
from engines.models import ModelFiles
from engines.torch.loader import load_runner
from engines.torch.runner import Row
from testing.tiny_models import make_tiny_model

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
    ],
)
def test_quantisers_that_would_lose_their_scales(files: ModelFiles, described: dict[str, Any], message: str) -> None:
    to_eight_bits(files, "weight_scale", None)
    describe(files, **described)
    with pytest.raises(ModelError, match=f"tiny: .*{message}"):
        load_runner(files, num_slots=1, device="cpu")


def test_modelopt_may_leave_the_configuration_alone(files: ModelFiles) -> None:
    to_eight_bits(files, "weight_scale", None)
    file = files.folder / "hf_quant_config.json"
    file.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}))
    with pytest.raises(ModelError, match=r"modelopt to FP8 \(hf_quant_config.json\)"):
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
