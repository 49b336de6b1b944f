"""Models of one tokenizer whose logits are padded to other numbers of rows, as Qwen2.5's: one vocabulary."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from protocol.messages import DraftResponse
from server.rounds.padded_rows import within
from testing.in_process import Stack, running_stack
from testing.patience import PATIENCE
from testing.tiny_models import make_tiny_model
from tests.test_vocabularies import complete, drafted, drafted_by

PROMPTS = ["The quick brown fox", "Once upon a time"]


def padded(source: Path, folder: Path, rows: int) -> Path:
    make_tiny_model(folder, layers=1, vocabulary=rows)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def stack(bitwise: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("models")
    target = make_tiny_model(folder / "target", layers=2, vocabulary=384)
    target = padded(target, folder / "padded", 416)
    tokens = json.loads((target / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(tokens) <= 384
    pools = {
        f"rows_{rows}": {"model": str(padded(target, folder / f"rows_{rows}", rows)), "q_top_k": 4}
        for rows in (400, 448)
    }
    with running_stack(target, pools=pools) as stack:
        yield stack


@pytest.mark.parametrize("strategy", ["deterministic", "greedy", "threshold", "probabilistic"])
@pytest.mark.parametrize("drafter", ["rows_400", "rows_448"])
def test_rows_without_a_token_are_no_difference(stack: Stack, drafter: str, strategy: str) -> None:
    fields: dict[str, Any] = {"max_tokens": 48, "temperature": 1.3, "ignore_eos": True}
    for prompt in PROMPTS:
        ask = partial(complete, stack, prompt, drafted_by(drafter, strategy=strategy), **fields)
        # After a row that the drafter lacks, which random models alone say, it drafts no more for this request.
        answers = drafted(ask, 41 if drafter == "rows_448" else 1)
        if strategy == "deterministic":
            plain = complete(stack, prompt, drafted_by("none"), **fields)
            assert all(answer["choices"] == plain["choices"] for answer in answers)


def test_no_draft_was_a_failure(stack: Stack) -> None:
    """Random models draw padded rows as often as any."""
    page = httpx.get(f"{stack.url}/metrics", timeout=PATIENCE).text
    failures = [line for line in page.splitlines() if line.startswith("tandem_worker_failures_total{")]
    bad = [line for line in failures if 'role="draft"' in line and 'reason="bad_answer"' in line]
    assert bad
    assert all(line.endswith(" 0.0") for line in bad)


def candidate(token_ids: list[int], q: list[list[int]] | None = None) -> dict[str, Any]:
    tops = [{"token_ids": ids, "logprobs": [math.log(1 / len(ids))] * len(ids)} for ids in q] if q else None
    return {"token_ids": token_ids, "q": tops, "logprobs": [-1.0] * len(token_ids) if q else None}


def answered(*candidates: dict[str, Any], parts: list[tuple[str, int]] | None = None) -> DraftResponse:
    times = dict.fromkeys(("queue_ms", "forward_ms", "sample_ms", "total_ms"), 0.0)
    told = [{"source": source, "tokens": tokens} for source, tokens in parts or []]
    fields = {"session_id": None, "round": 0, "source": "model", "cached_tokens": 0, "timings": times, "parts": told}
    return DraftResponse.model_validate({**fields, "candidates": list(candidates)})


def test_a_draft_is_cut_before_a_row_that_the_target_lacks() -> None:
    whole = answered(candidate([1, 2, 9]), parts=[("lookup", 2), ("model", 1)])
    assert within(whole, 10) is whole
    cut = within(whole, 9)
    assert [one.token_ids for one in cut.candidates] == [[1, 2]]
    assert [(part.source, part.tokens) for part in cut.parts] == [("lookup", 2), ("model", 0)]
    three = within(answered(candidate([1, 9]), candidate([1, 10]), candidate([9]), candidate([2, 3])), 9)
    assert [one.token_ids for one in three.candidates] == [[1], [2, 3]]


def test_with_q_the_place_of_a_cut_does_not_follow_from_what_was_drawn() -> None:
    for drawn in (2, 9):
        cut = within(answered(candidate([1, drawn, 3], [[1, 4], [2, 9], [3]])), 9)
        assert [one.token_ids for one in cut.candidates] == [[1]]
        assert [top.token_ids for top in cut.candidates[0].q or []] == [[1, 4]]
        assert cut.candidates[0].logprobs == [-1.0]


def test_it_is_told_as_one_vocabulary(stack: Stack) -> None:
    detail = httpx.get(f"{stack.url}/ready", timeout=PATIENCE).json()["detail"]
    assert "rows_448 on torch" in detail
    assert "by shared" not in detail
    metrics = httpx.get(f"{stack.url}/metrics", timeout=PATIENCE).text.splitlines()
    assert not [
        line for line in metrics if line.startswith("tandem_vocabulary_mismatch{") and not line.endswith(" 0.0")
    ]
