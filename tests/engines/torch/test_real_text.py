"""A real model, loaded as a worker loads it, writes what transformers' own `generate` writes, whatever is drafted.

The bundled model, and those in the folders that TANDEM_REAL_MODELS names (separated by colons).
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engines.models import ModelFiles
from engines.torch.loader import load_runner
from testing.models import bundled
from tests.engines.torch.families import Rounds, Stream, greedy

pytestmark = pytest.mark.slow
NEW = 60
PROMPTS = [
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics are:\n1.",
    "<|im_start|>user\nName five rivers of Europe, with a sentence on each.<|im_end|>\n<|im_start|>assistant\n",
]
FOLDERS = [None, *(Path(name) for name in os.environ.get("TANDEM_REAL_MODELS", "").split(":") if name)]


@lru_cache(maxsize=1)
def texts(folder: Path) -> list[tuple[list[int], list[int]]]:
    """For each prompt its ids, and those of the prompt and NEW tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for setting in ("eos_token_id", "repetition_penalty", "temperature", "top_p", "top_k"):
        setattr(model.generation_config, setting, None)
    prompts = [tokenizer(prompt).input_ids for prompt in PROMPTS]
    with torch.inference_mode():
        return [(prompt, greedy(model, prompt, NEW)) for prompt in prompts]


@pytest.mark.parametrize("drafts", ["wrong", "right", "partly right"])
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: "bundled" if folder is None else folder.name)
def test_texts_equal_those_of_transformers(folder: Path | None, drafts: str) -> None:
    folder = folder or bundled()
    found = texts(folder)
    every = {"wrong": 1, "right": 10**6, "partly right": 3}[drafts]
    rounds = Rounds(load_runner(ModelFiles(folder.name, folder), num_slots=3, slot_length=256, device="cpu"))
    streams = []
    for owner, (prompt, text) in enumerate(found):
        hint = [token + 1 if i % every == every - 1 else token for i, token in enumerate([*text, *prompt])]
        streams.append(Stream(list(prompt), hint, owner))
    passes = 0
    while late := [stream for stream, (_, text) in zip(streams, found, strict=True) if len(stream.ids) < len(text)]:
        rounds.round(late, 4)
        passes += 1
    for stream, (_, text) in zip(streams, found, strict=True):
        assert stream.ids[: len(text)] == text
    low, high = {"wrong": (NEW, NEW), "right": (NEW // 5, NEW // 5), "partly right": (NEW // 5 + 1, NEW - 1)}[drafts]
    assert low <= passes <= high
