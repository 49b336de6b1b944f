"""Models of one tokenizer whose logits are padded to other numbers of rows, as Qwen2.5's: one vocabulary."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.in_process import Stack, running_stack
from testing.tiny_models import make_tiny_model
from tests.test_vocabularies import complete, counts, drafted_by

PROMPTS = ["The quick brown fox", "Once upon a time"]


def padded(source: Path, folder: Path, rows: int) -> Path:
    make_tiny_model(folder, layers=1, vocabulary=rows)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def stack(bitwise: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("models")
    target = make_tiny_model(folder / "target", layers=2)
    pools = {f"rows_{rows}": {"model": str(padded(target, folder / f"rows_{rows}", rows))} for rows in (384, 640)}
    with running_stack(target, pools=pools) as stack:
        yield stack


@pytest.mark.parametrize("strategy", ["deterministic", "greedy", "threshold", "probabilistic"])
@pytest.mark.parametrize("drafter", ["rows_384", "rows_640"])
def test_rows_without_a_token_are_no_difference(stack: Stack, drafter: str, strategy: str) -> None:
    fields: dict[str, Any] = {"max_tokens": 48, "temperature": 1.3, "ignore_eos": True}
    for prompt in PROMPTS:
        answer = complete(stack, prompt, drafted_by(drafter, strategy=strategy), **fields)
        assert counts(answer)[0] > 40, "drafts of every round, none thrown away"
        if strategy == "deterministic":
            assert answer["choices"] == complete(stack, prompt, drafted_by("none"), **fields)["choices"]


def test_it_is_told_as_one_vocabulary(stack: Stack) -> None:
    detail = httpx.get(f"{stack.url}/ready").json()["detail"]
    assert "rows_640 on torch" in detail
    assert "by shared" not in detail
    metrics = httpx.get(f"{stack.url}/metrics").text.splitlines()
    assert not [
        line for line in metrics if line.startswith("tandem_vocabulary_mismatch{") and not line.endswith(" 0.0")
    ]
