"""The training loop: where it ends, and that it goes on from a checkpoint."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.models import resolve_model
from training.corpus import Corpus, plan_batches
from training.run import load_target
from training.student import make_student, trained_state
from training.trainer import Recipe, train

RECIPE = Recipe(epochs=1.0, batch_tokens=256, longest=48, learning_rate=4e-3, figures=2)
draw = random.Random(4)
CORPUS = Corpus.of([([draw.randrange(5, 300) for _ in range(32)], 4, 0.0, "chat") for _ in range(24)])
STEPS = len(plan_batches(CORPUS, RECIPE.batch_tokens, RECIPE.longest, RECIPE.seed))


@pytest.fixture(scope="module")
def model(target: Path) -> Any:
    return load_target(resolve_model(str(target)), "cpu")[0]


def trained(model: Any, folder: Path, recipe: Recipe) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """What was reported, and the weights, of a new student trained in the folder."""
    student = make_student(model, [0], None)
    history = train(student, model, None, CORPUS, CORPUS, recipe, folder, lambda message: None)
    return history, {name: value.clone() for name, value in trained_state(student).items()}


def test_a_checkpoint_is_gone_on_from(model: Any, tmp_path: Path) -> None:
    first, weights = trained(model, tmp_path, RECIPE)
    assert (first[0]["step"], first[-1]["step"]) == (0, STEPS)
    again, same = trained(model, tmp_path, RECIPE)
    assert again[1:] == first[1:]
    assert all(torch.equal(same[name], weights[name]) for name in weights), "the student is the one that was saved"
    longer, further = trained(model, tmp_path, replace(RECIPE, epochs=2.0))
    assert longer[1 : len(first)] == first[1:]
    assert longer[-1]["step"] == 2 * STEPS
    assert any(not torch.equal(further[name], weights[name]) for name in weights)
    assert (tmp_path / "progress.jsonl").read_text().splitlines() == [json.dumps(entry) for entry in longer]


def test_time_that_is_up_ends_it_before_the_epochs_do(model: Any, tmp_path: Path) -> None:
    before = trained_state(make_student(model, [0], None))
    history, weights = trained(model, tmp_path, replace(RECIPE, epochs=100.0, minutes=1e-9))
    assert [entry["step"] for entry in history] == [0]
    assert all(torch.equal(weights[name], before[name]) for name in before)
