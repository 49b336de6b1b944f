"""The scripts of examples/ run, each on a tiny model; what they say of the text holds."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from testing.in_process import Stack, running_stack
from testing.tiny_models import make_tiny_model

EXAMPLES = Path(__file__).parents[3] / "examples"
RUN_HERE = ["basic", "streaming", "compare_draft_tokens", "strategies", "predicted_outputs"]
RUN_AGAINST = ["remote_target", "openai_sdk"]


def run(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("models") / "target", layers=2))


@pytest.fixture(scope="module")
def server(target: str) -> Any:
    with running_stack(Path(target), exact=False) as stack:
        yield stack


def test_none_is_forgotten() -> None:
    assert sorted(file.stem for file in EXAMPLES.glob("*.py")) == sorted([*RUN_HERE, *RUN_AGAINST])


@pytest.mark.parametrize("name", RUN_HERE)
def test_it_runs(name: str, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(name, [target], monkeypatch, capsys)
    assert len(said.splitlines()) >= 2


@pytest.mark.parametrize("name", RUN_AGAINST)
def test_it_runs_against_workers_and_gateway(
    name: str, server: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = server.target_url if name == "remote_target" else server.url
    said = run(name, [url], monkeypatch, capsys)
    assert "tokens for each round trip" in said or "draft tokens accepted" in said
