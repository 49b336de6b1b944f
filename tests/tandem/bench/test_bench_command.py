"""The whole command against a gateway over a tiny model, each over a socket of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from click.testing import Result
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from tandem.cli import app
from testing.in_process import Stack, running_stack
from testing.patience import PATIENCE, eventually
from testing.tiny_models import make_tiny_model, truncate_model

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models `tiny` and `tiny-draft`."""
    target = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", layers=2, hidden=32)
    truncate_model(target, target.with_name("tiny-draft"), 1)
    return target.parent


@pytest.fixture(scope="module")
def stack(models: Path) -> Iterator[Stack]:
    with running_stack(models / "tiny", models / "tiny-draft", exact=False) as running:
        yield running


@pytest.fixture(scope="module")
def locked(models: Path) -> Iterator[Stack]:
    with running_stack(models / "tiny", exact=False, api_keys=["secret"]) as running:
        yield running


def bench(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments], env=variables)


def written(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("*.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_one_run_holds_everything_side_by_side(stack: Stack, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    answers = tmp_path / "sums.jsonl"
    answers.write_text('{"turns": ["Hi", "1 + 1?"], "answer": "so #### 2"}\n')
    done = bench(
        *("--url", stack.url, "--prompts", f"chat,sums={answers}", "--limit", "1", "--max-tokens", "8"),
        *("--drafters", "tiny-draft,history", "--draft-tokens", "2,4", "--candidates", "1,2"),
        *("--temperatures", "0,0.8", "--concurrency", "1,2", "--out", str(tmp_path / "out")),
    )
    assert done.exit_code == 0, done.stderr
    found = written(tmp_path / "out")
    assert found["complete"]
    names = {row["name"] for row in found["rows"]}
    ways = {"tiny-draft γ2", "tiny-draft γ4", "tiny-draft γ2 N2", "tiny-draft γ4 N2"}
    assert names == {"plain", "history", *ways}
    assert {sample["variant"]["temperature"] for sample in found["samples"]} == {0.0, 0.8}
    for row in found["rows"]:
        assert row["failures"] == 0
        if row["variant"]["drafter"] is not None:
            assert row["same"] == row["compared"] > 0, "speculation changes no text"
            assert row["speed_up"]["value"] > 0
    drafted = [row for row in found["rows"] if row["name"] == "tiny-draft γ4"]
    assert all(0 < row["acceptance_rate"] <= 1 and row["acceptance_by_position"] for row in drafted)
    assert {sample["turn"] for sample in found["samples"]} == {0, 1}, "the second turn was asked, too"
    assert all(row["judged"] for row in found["rows"])
    assert "speed-up" in done.stdout
    pictures = {path.name.rpartition("-")[2] for path in (tmp_path / "out").glob("*.png")}
    assert pictures == {"speedup.png", "acceptance.png", "latency.png", "throughput.png"}


def test_a_rate_and_another_server(stack: Stack, tmp_path: Path) -> None:
    done = bench(
        *("--url", stack.url, "--prompts", "code", "--limit", "3", "--max-tokens", "8", "--drafters", "lookup"),
        *("--rates", "50", "--also", f"other={stack.url}/v1", "--no-plots", "--out", str(tmp_path)),
    )
    assert done.exit_code == 0, done.stderr
    found = written(tmp_path)
    assert [row["name"] for row in found["rows"]] == ["plain", "lookup", "other"]
    assert all(row["requests"] == 3 and row["load"]["rate"] == 50 for row in found["rows"])
    assert "secret" not in json.dumps(found)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "http://127.0.0.1:9"], "cannot be reached (is it running?)"),
        (["--url", "nonsense"], "no address"),
        (["--url", "URL", "--model", "other"], "there is no model 'other'; it has tiny"),
        (["--url", "URL", "--drafters", "oracle"], "--drafters: the server has no drafter 'oracle'"),
        (["--url", "URL", "--prompts", "nothing.jsonl"], "nothing.jsonl: there is no such file"),
        (["--url", "URL", "--temperatures", "0,hot"], "--temperatures: 'hot' is not a number from 0 to 2"),
        (["--url", "URL", "--target", "x"], "--target is for a Tandem of its own"),
        (["--url", "URL", "--max-tokens", "30000"], "maximum context length"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_written(
    stack: Stack, tmp_path: Path, arguments: list[str], words: str
) -> None:
    named = [stack.url if argument == "URL" else argument for argument in arguments]
    done = bench(*named, "--no-plots", "--out", str(tmp_path / "out"))
    assert done.exit_code in (1, 2)
    assert words in done.stderr.replace("\n", " "), done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_to_is_found_before_anything_is_measured(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = bench("--url", stack.url, "--prompts", "chat", "--limit", "1", "--out", str(tmp_path / "file" / "out"))
    assert done.exit_code == 1
    assert "cannot be written to: Not a directory" in done.stderr.replace("\n", " ")
    assert done.stdout == ""


def test_a_key_is_asked_for_and_never_written(locked: Stack, tmp_path: Path) -> None:
    refused = bench("--url", locked.url, "--out", str(tmp_path))
    assert refused.exit_code == 1
    assert "TANDEM_API_KEY" in refused.stderr
    fields = ["--prompts", "chat", "--limit", "1", "--max-tokens", "4", "--no-plots", "--out", str(tmp_path)]
    done = bench("--url", locked.url, *fields, TANDEM_API_KEY="secret")
    assert done.exit_code == 0, done.stderr
    assert "secret" not in json.dumps(written(tmp_path))


def test_an_interrupt_writes_what_was_measured(stack: Stack, tmp_path: Path) -> None:
    fields = ["--prompts", "chat", "--max-tokens", "64", "--ignore-eos", "--repetitions", "1000", "--no-plots"]
    command = [sys.executable, "-P", "-m", "tandem", "bench", "--url", stack.url, *fields, "--out", str(tmp_path)]
    before = answered(stack.url)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    measures(process, stack.url, before + 6)  # beyond the two that warm it up
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    found = written(tmp_path)
    assert not found["complete"]
    assert found["samples"]


def measures(process: subprocess.Popen[str], url: str, requests: float) -> None:
    """Wait until the server has answered as many."""

    def enough() -> bool:
        assert process.poll() is None
        return answered(url) >= requests

    eventually(enough, f"{requests:g} requests are answered")


def answered(url: str) -> float:
    page = httpx.get(f"{url}/metrics", trust_env=False, timeout=PATIENCE).text
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return sum(s.value for s in samples if s.name == "tandem_request_success_total")


def test_two_runs_are_compared(stack: Stack, tmp_path: Path) -> None:
    fields = ["--prompts", "editing", "--limit", "2", "--max-tokens", "8", "--drafters", "lookup", "--no-plots"]
    files = []
    for name in ("a", "b"):
        assert bench("--url", stack.url, *fields, "--out", str(tmp_path / name)).exit_code == 0
        files += [str(path) for path in (tmp_path / name).glob("*.json")]
    done = bench("--compare", *files)
    assert done.exit_code == 0, done.stderr
    assert "2 of 2" in done.stdout
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    refused = bench("--compare", files[0], str(broken))
    assert refused.exit_code == 1
    assert "no result of tandem bench" in refused.stderr


def test_transformers_itself_says_the_same(stack: Stack, models: Path, tmp_path: Path) -> None:
    done = bench(
        *("--url", stack.url, "--prompts", "chat", "--limit", "2", "--max-tokens", "12", "--drafters", "lookup"),
        *("--transformers", "plain,assistant,lookup", "--transformers-model", str(models / "tiny")),
        *("--assistant-model", str(models / "tiny-draft"), "--no-plots", "--out", str(tmp_path)),
        *("--concurrency", "1,2"),
    )
    assert done.exit_code == 0, done.stderr
    rows = {(row["name"], row["load"]["concurrency"]): row for row in written(tmp_path)["rows"]}
    for name in ("transformers", "transformers assistant", "transformers lookup"):
        row = rows[name, 1]
        assert (row["same"], row["compared"], row["failures"]) == (2, 2, 0), name
        assert row["speed_up"]["value"] > 0
        assert (name, 2) not in rows, "generate() takes one request at a time"


def test_a_tandem_of_its_own_ends_with_it(models: Path, tmp_path: Path) -> None:
    fields = ["--prompts", "chat", "--limit", "1", "--max-tokens", "8", "--ignore-eos", "--repetitions", "1000"]
    own = ["--target", str(models / "tiny"), "--draft", str(models / "tiny-draft"), "--device", "cpu"]
    command = [sys.executable, "-P", "-m", "tandem", "bench", *own, *fields, "--no-plots", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("gateway  ready"):
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 3
    (gateway,) = (words for child in children if "serve" in (words := child.cmdline()))
    measures(process, f"http://127.0.0.1:{gateway[gateway.index('--port') + 1]}", 30)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert not alive
    found = written(tmp_path)
    assert not found["complete"]
    assert {sample["variant"]["drafter"] for sample in found["samples"]} >= {None}
    assert found["server"]["drafters"] == ["auto", "lookup", "tiny-draft"]
