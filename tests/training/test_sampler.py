"""Text that the target generates, many sequences side by side."""

from __future__ import annotations

from pathlib import Path

import torch

from engines.models import resolve_model
from training.run import load_target
from training.sampler import Prompt, Sampler


def test_greedy_sampling_writes_what_transformers_writes(target: Path) -> None:
    model, tokenizer, stops = load_target(resolve_model(str(target)), "cpu")
    prompts = [
        Prompt(tuple(tokenizer(text)["input_ids"]), 0.0, 24) for text in ("Once upon", "def add(a", "A", "The fox")
    ]
    expected = {
        prompt.ids: tuple(
            model.generate(
                torch.tensor([prompt.ids]),
                max_new_tokens=24,
                do_sample=False,
                eos_token_id=stops,
                pad_token_id=stops[0],
            )[0].tolist()
        )
        for prompt in prompts
    }
    sampler = Sampler(model, sequences=2, length=64, stop_ids=stops)
    said = {answer.prompt.ids: answer.ids for answer in sampler.run(iter(prompts))}
    assert {ids: ids + said[ids] for ids in said} == expected
