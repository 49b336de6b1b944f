"""One training run as two processes, as torchrun and `accelerate launch` start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.corpus import Corpus
from training.processes import Processes


def launch(target: Path, data: Path, out: Path, *options: str) -> str:
    """Two processes of `tandem train-draft`; what they said."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    job = ["--target", str(target), "--data", str(data), "--out", str(out), "--device", "cpu", "--layers", "2"]
    sizes = ["--vocabulary", "200", "--tokens", "6000", "--sequences", "16", "--length", "96", "--batch-tokens", "512"]
    command = [*launcher, "-m", "tandem", "train-draft", *job, *sizes, *options]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    assert run.returncode == 0, run.stderr[-6000:]
    return run.stderr


@pytest.mark.slow
def test_two_processes_train_one_draft(target: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "data.jsonl", tmp_path / "draft"
    data.write_text("".join(json.dumps({"prompt": f"Tell me about {i}."}) + "\n" for i in range(96)))
    said = launch(target, data, out, "--epochs", "1")
    parts = [Corpus.load(file) for file in sorted((out / "work" / "answers").glob("*.safetensors"))]
    assert len(parts) == 2
    assert f"{sum(map(len, parts)):,} texts" in said  # what both generated
    assert said.count("draft written to") == said.count(" texts of ") == 1  # one of them speaks
    figures = [
        json.loads(line)["tokens a round"] for line in (out / "work" / "progress.jsonl").read_text().splitlines()
    ]
    assert all(figures[-1][name] > figures[0][name] for name in figures[0])
    assert (out / "README.md").exists()
    modes = {(out / name).stat().st_mode for name in ("draft.safetensors", "config.json", "draft.json")}
    assert len(modes) == 1  # whoever may read one may read all
    again = launch(target, data, out, "--epochs", "2")  # goes on where it was
    assert "step 0 " not in again
    assert "100%" in again


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    process = Processes.from_environment()
    assert not process.main
    assert [process.device(name) for name in ("auto", "cuda", "cuda:3", "cpu")] == ["cuda:1", "cuda:1", "cuda:3", "cpu"]
    assert Processes().device("auto") == "auto"
