"""Text that the target generates, many sequences side by side."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from engines.models import resolve_model
from training.errors import TrainingError
from training.generation import generate
from training.prompts import Mixture, PromptSource
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


def test_a_stream_of_prompts_without_room_for_an_answer_ends_in_an_error(target: Path) -> None:
    model, tokenizer, stops = load_target(resolve_model(str(target)), "cpu")
    sampler = Sampler(model, sequences=2, length=16, stop_ids=stops)
    long = Prompt(tuple(tokenizer("Once upon a time there was a fox. " * 4)["input_ids"]), 0.0, 24)
    with pytest.raises(TrainingError, match="--length"):
        list(sampler.run(itertools.repeat(long)))


def test_questions_that_never_become_prompts_end_in_an_error(target: Path) -> None:
    model, tokenizer, _ = load_target(resolve_model(str(target)), "cpu")
    sampler = Sampler(model, sequences=8, length=32, stop_ids=[])  # a question without an end is no question
    source = PromptSource(tokenizer, [], Mixture(), 0, 16)
    with pytest.raises(TrainingError, match=r"questions in a row.*--length"):
        generate(sampler, source, tokens=1_000_000, minutes=None, progress=lambda message: None)
