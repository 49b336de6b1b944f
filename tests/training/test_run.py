"""`tandem train-draft` from end to end on a tiny target: the draft learns, and loads in the engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from config.workers import DraftWorkerConfig
from draft_worker.app import create_app
from engines.errors import ModelError
from engines.models import resolve_model
from engines.runtime.runner import ChainRow
from engines.tokenizer import load_tokenizer
from engines.torch.draft_weights import UNSAID
from engines.torch.loader import load_runner
from engines.torch.runner import Row
from engines.torch.short_chains import ShortChains
from testing.tiny_models import make_tiny_model
from testing.wire import request
from testing.worker_apps import running
from training.corpus import Corpus
from training.prompts import Mixture
from training.run import HELD_OUT, Job, run
from training.trainer import Recipe


def job(target: Path, out: Path, data: Path, epochs: float = 4) -> Job:
    return Job(
        str(target),
        data,
        out,
        layers=2,
        vocabulary=200,
        tokens=12_000,
        sequences=64,
        length=96,
        held_out_prompts=12,
        device="cpu",
        mixture=Mixture(most_new_tokens=48),
        recipe=Recipe(epochs=epochs, batch_tokens=1024, longest=96, learning_rate=4e-3, figures=3),
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "data.jsonl"
    lines = [
        {"prompt": f"Tell me about {i}."} if i % 2 else {"prefix": f"def f{i}(", "kind": "code"} for i in range(96)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.fixture(scope="module")
def draft(target: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(job(target, tmp_path_factory.mktemp("drafts") / "draft", data), lambda message: None)


def test_a_trained_draft_is_accepted_far_more_often_than_an_untrained_one(draft: Path) -> None:
    history = [json.loads(line) for line in (draft / "work" / "progress.jsonl").read_text().splitlines()]
    before, after = history[0]["tokens a round"], history[-1]["tokens a round"]
    assert set(before) == {"chat, T=0.0", "chat, T=0.7", "code, T=0.0", "code, T=0.7"}
    assert sum(after.values()) - 4 > 1.5 * (sum(before.values()) - 4)
    assert "trained" in (draft / "README.md").read_text()


def test_going_on_after_the_end_changes_nothing(draft: Path, target: Path, data: Path) -> None:
    weights = (draft / "draft.safetensors").read_bytes()
    run(job(target, draft, data), lambda message: None)
    assert (draft / "draft.safetensors").read_bytes() == weights


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_engine_loads_it_with_the_targets_own_parts(draft: Path, target: Path, dtype: str) -> None:
    files = resolve_model(str(draft))
    assert files.parts is not None
    assert files.parts.folder == target
    assert load_tokenizer(files).get_vocab() == load_tokenizer(files.parts).get_vocab()
    runner = load_runner(files, num_slots=1, slot_length=64, device="cpu", dtype=dtype)  # type: ignore[arg-type]
    (logits,) = runner.forward([Row(0, 0, [5, 6, 7])])
    assert logits.shape == (3, 384)
    assert ((logits > UNSAID / 2).sum(dim=-1) == 200).all()


def test_int8_steps_say_what_the_same_weights_in_float32_say(draft: Path) -> None:
    runner = load_runner(resolve_model(str(draft)), num_slots=2, slot_length=64, device="cpu")
    ids = list(range(20, 44))
    (at_once,) = runner.forward([Row(0, 0, ids)])  # more rows than int8 products take
    stepwise = torch.cat([runner.forward([Row(1, i, [token])])[0] for i, token in enumerate(ids)])
    said = at_once > UNSAID / 2
    error = (stepwise[said] - at_once[said]).norm() / at_once[said].norm()
    assert error < 0.1
    assert error > 0.0


def test_a_worker_draws_its_drafts_as_chains(draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    run = ShortChains.run

    def counted(self: ShortChains, chains: Sequence[ChainRow]) -> list[list[int]]:
        asked.extend(chain.count for chain in chains)
        return run(self, chains)

    monkeypatch.setattr(ShortChains, "run", counted)

    async def drafts(ids: list[int], **settings: Any) -> list[int]:
        config = DraftWorkerConfig(
            model=str(draft), device="cpu", threads=1, context_length=64, slots=2, q_top_k=8, **settings
        )
        async with running(create_app(config)) as client:
            body = request(ids, draft_tokens=5, sampling={"temperature": 0.7, "ignore_eos": True})
            answer = await client.post("/v1/draft", json=body)
            found: list[int] = answer.json()["candidates"][0]["token_ids"]
            assert (await client.get("/v1/model")).json()["dtype"] == "int8"
            return found

    ids = [5, 6, 7, 8, 9]
    assert asyncio.run(drafts(ids)) == asyncio.run(drafts(ids, chains="off"))
    assert asked == [5]
    assert len(asyncio.run(drafts(list(range(20, 50))))) == 5, "a prompt is read before its chain"


def test_it_is_refused_for_another_target(draft: Path, target: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", layers=3, spread=3.0, seed=9)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "draft.safetensors", "draft.json"):
        (copy / name).write_bytes((draft / name).read_bytes())
    description = json.loads((copy / "draft.json").read_text())
    (copy / "draft.json").write_text(json.dumps({**description, "target": str(other)}))
    with pytest.raises(ModelError, match="trained for other weights"):
        load_runner(resolve_model(str(copy)), num_slots=1, slot_length=64, device="cpu")


def test_what_is_held_out_is_no_more_than_what_is_asked_for(target: Path, tmp_path: Path) -> None:
    small = replace(job(target, tmp_path / "draft", tmp_path, epochs=1), data=None, tokens=300, stage="generate")
    told: list[str] = []
    run(small, told.append)
    held = Corpus.load(small.out / "work" / HELD_OUT)
    assert 300 <= held.said < 300 + 64 * 96, told  # of 64 answers side by side some are under way
