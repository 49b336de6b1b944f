"""What a token costs on a GPU, through vLLM alone and through Tandem: `python -m benchmarks.engines_gpu`.

A target in the shape of Qwen2.5-32B with vLLM's dummy weights, a draft in the shape of the 0.5B with random ones. vLLM
accepts the i-th draft token with probability 0.75^i whatever it is ("synthetic"), so that time alone is measured. Rows:

- plain: vLLM
- draft_model: vLLM's own speculation with the same draft
- tandem: streaming client → `tandem serve` → `tandem target --engine vllm` → `tandem draft` (torch, chains)
- serve: vLLM with Tandem's proposer → `tandem draft`

Needs vLLM and Tandem's requirements for a worker. `--gpus 2` gives the draft a GPU of its own.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.gpu_models import DRAFT, TARGET, TINY, Shape, empty_model, random_model
from benchmarks.gpu_rows import Options, Rig, Rows
from testing.client import Answer, Client

ROWS = ("tandem", "plain", "serve", "draft_model")
SETTLE = 16
HEADER = (
    f"{'row':12} {'batch':>5} {'ms/token':>8} {'tok/round':>9} {'ms/round':>8}   "
    f"{'engine':>7} {'propose':>7} {'draft worker':>12} {'no draft':>8}"
)


def measure(rig: Rig, options: Options, batch: int) -> str:
    """One line of the table, from two turns of which the second counts."""
    chooser = random.Random(batch)
    with Client(rig.server.url, timeout=options.seconds_left(180.0)) as client, ThreadPoolExecutor(batch) as pool:

        def ask(_: int) -> Answer:
            prompt = [chooser.randrange(300, options.vocabulary - 10) for _ in range(options.prompt_tokens)]
            return client.complete(prompt, stream=True, max_tokens=options.tokens, temperature=0.0, ignore_eos=True)

        _await_drafts(client, rig)
        list(pool.map(ask, range(batch)))
        before, began = _counters(client, rig), time.time()
        answers = list(pool.map(ask, range(batch)))
        after, ended = _counters(client, rig), time.time()
    per_token = mean(1e3 / answer.tokens_per_second(SETTLE) for answer in answers)
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    rounds = grown.get("drafts", 0.0)
    per_round = 1.0 + grown["accepted"] / rounds if rounds else 1.0
    line = f"{batch:5} {per_token:8.2f} {per_round:9.2f} {per_token * per_round:8.2f}   "
    if rig.clock is not None:
        engine, propose, undrafted = _steps(rig.clock, began, ended, batch)
        worker = 1e3 * grown["draft_seconds"] / max(1.0, grown["draft_calls"])
        line += f"{engine:7.2f} {propose:7.2f} {worker:12.2f} {undrafted:8.0%}"
    return line


def _await_drafts(client: Client, rig: Rig) -> None:
    """The proposer looks for its draft worker ever less often until it is there."""
    until = time.monotonic() + 40.0
    while rig.draft is not None and time.monotonic() < until and not _counters(client, rig)["drafts"]:
        client.complete([*range(300, 332)], max_tokens=24, temperature=0.0, ignore_eos=True)


def _counters(client: Client, rig: Rig) -> dict[str, float]:
    """Rounds with drafts and what was accepted, of the server; calls of the draft worker and their seconds."""
    page = client.metrics()

    def total(page: dict[str, float], name: str) -> float:
        return sum(value for key, value in page.items() if key.split("{")[0] == name)

    found = {
        "drafts": total(page, "vllm:spec_decode_num_drafts_total"),
        "accepted": total(page, "vllm:spec_decode_num_accepted_tokens_total"),
    }
    if rig.draft is not None:
        page = {key: value for key, value in client.metrics(rig.draft.url).items() if "/v1/draft/batch" in key}
        found["draft_seconds"] = total(page, "tandem_draft_http_request_duration_seconds_sum")
        found["draft_calls"] = total(page, "tandem_draft_http_request_duration_seconds_count")
    return found


def _steps(clock: Path, began: float, ended: float, batch: int) -> tuple[float, float, float]:
    """Of steps with all streams in them and drafts for them: ms in vLLM, ms proposing; and the share without drafts."""
    lines = [tuple(map(float, line.split())) for line in clock.read_text().splitlines() if line.count(" ") == 4]
    full = [line for line in lines if began < line[0] < ended and line[3] == batch]
    drafted = [line for line in full if line[4] > 0] or [(0.0, float("nan"), float("nan"), 0.0, 0.0)]
    share = 1.0 - sum(line[4] > 0 for line in full) / max(1, len(full))
    return 1e3 * mean(line[1] for line in drafted), 1e3 * mean(line[2] for line in drafted), share


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--memory-gb", type=float, default=4.0, help="vLLM's keys and values")
    parser.add_argument("--deadline-ms", type=float, default=50.0, help="how long a step waits for drafts")
    parser.add_argument("--start-seconds", type=float, default=240.0, help="most that a process may take to start")
    parser.add_argument("--seconds", type=float, default=540.0, help="most for everything")
    parser.add_argument("--folder", type=Path, help="where models and logs go, and stay")
    parser.add_argument("--tiny", action="store_true", help="a dry run of this script on a CPU")
    given = parser.parse_args()
    names = given.rows.split(",")
    if not set(names) <= set(ROWS):
        parser.error(f"--rows takes {', '.join(ROWS)}")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="engines-gpu-"))
    target, draft = _models(folder, given.tiny)
    options = Options(
        target, draft, given.tiny, given.gpus, given.prompt_tokens, given.tokens,
        0.1 if given.tiny else given.memory_gb, 5_000.0 if given.tiny else given.deadline_ms, given.start_seconds,
        (TINY if given.tiny else TARGET).vocabulary, time.monotonic() + given.seconds,
    )  # fmt: skip
    rows = Rows(options, folder / "logs")
    print(f"{_card()}, torch {torch.__version__}; logs in {folder / 'logs'}\n{HEADER}", flush=True)
    failed = 0
    for row in names:
        kind: Callable[[], Any] = getattr(rows, row)
        began = time.monotonic()
        try:
            with kind() as rig:
                print(f"{row:12} started in {time.monotonic() - began:.0f} s", flush=True)
                for batch in map(int, given.batches.split(",")):
                    print(f"{row:12} {measure(rig, options, batch)}", flush=True)
        except Exception:  # noqa: BLE001 - the other rows are to be measured
            failed += 1
            print(f"{row:12} failed after {time.monotonic() - began:.0f} s", flush=True)
            traceback.print_exc(limit=2, file=sys.stdout)
            for log in sorted((folder / "logs" / row).glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}", flush=True)
    return 1 if failed else 0


def _card() -> str:
    """Asks another program, since torch would take some of the card's memory."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return " and ".join(subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.splitlines())
    except OSError:
        return "CPU"


def _models(folder: Path, tiny: bool) -> tuple[Path, Path]:
    def made(name: str, make: Callable[[Path], Path]) -> Path:
        return folder / name if (folder / name / "model.safetensors").exists() else make(folder / name)

    if tiny:
        model = made("tiny", lambda path: random_model(path, TINY, torch.float32))
        return model, model
    shapes: tuple[Shape, Shape] = (TARGET, DRAFT)
    return (
        made("target", lambda path: empty_model(path, shapes[0])),
        made("draft", lambda path: random_model(path, shapes[1], torch.bfloat16)),
    )


if __name__ == "__main__":
    sys.exit(main())
