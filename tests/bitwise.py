"""Can this machine's products be had in bitwise mode? Where not, tests that need it are skipped with the reason."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from engines.errors import BatchInvarianceError
from engines.models import ModelFiles
from engines.torch.loader import load_runner
from testing.tiny_models import make_tiny_model


def smollm2_shaped(dtype: torch.dtype, folder: Path) -> Path:
    """A random model with the layer shapes of the bundled one, two layers of them, written to `folder`."""
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=2,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    return folder


@cache
def refusal() -> str | None:
    """Why the mode cannot be had here in float32, tried with the shapes that the tests use; None where it can."""
    with tempfile.TemporaryDirectory() as place:
        for folder in (make_tiny_model(Path(place) / "tiny"), smollm2_shaped(torch.float32, Path(place) / "bundled")):
            try:
                load_runner(
                    ModelFiles("tried", folder), num_slots=2, slot_length=96, device="cpu", batch_invariant=True
                )
            except BatchInvarianceError as error:
                return str(error)
    return None
