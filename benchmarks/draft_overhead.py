"""What a draft call costs beside the model: `python -m benchmarks.draft_overhead` from the repository's root.

A `tandem draft` with chains, asked as vLLM's proposer asks it: over one kept-alive connection, γ tokens for 1, 8 and 32
sequences a call, each 1 to 6 tokens longer than a call before. The time of the chains is the worker's own metric, taken
from the call's; one pass a call shows that no item of a batch waits for another's chain. Without `--model` the model
has random weights: a very small one, on CUDA one of Qwen2.5-0.5B's shape.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from statistics import mean, quantiles

import httpx
import numpy as np
import psutil
import torch
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.gpu_models import DRAFT, Shape, random_model
from engines.vllm.proposer.connection import DraftConnection
from engines.vllm.proposer.sequence import DraftedSequence, Ids
from testing.processes import Process, Stack

SMALLEST = Shape(64, 128, 1, 2, 1, 1_024, tied=True)
SECONDS = 30.0
IDS = range(300, 1_000)


class Caller:
    """Sequences that grow, and the connection over which drafts are asked for them."""

    def __init__(self, url: str, sequences: int, context: int) -> None:
        self._chooser = random.Random(sequences)
        self._connection = DraftConnection(url, None, None, SECONDS)
        self._sequences = [DraftedSequence(self._ids(context), context, None) for _ in range(sequences)]
        self.ask(0)

    def ask(self, draft_tokens: int) -> float:
        """The seconds that one call took."""
        items = [one.question(len(one), draft_tokens, 1_000, SECONDS, None) for one in self._sequences]
        began = time.perf_counter()
        answer = self._connection.exchange("POST", "/v1/draft/batch", {"protocol": 1, "items": items}, SECONDS)
        seconds = time.perf_counter() - began
        if any(item["error"] for item in answer["items"]):
            raise RuntimeError(f"not drafted: {answer}")
        for one in self._sequences:
            one.hold(len(one))
            one.append(self._ids(self._chooser.randint(1, 6)))
        return seconds

    def close(self) -> None:
        for one in self._sequences:
            self._connection.exchange("DELETE", f"/v1/sessions/{one.session_id}", None, SECONDS)
        self._connection.close()

    def _ids(self, count: int) -> Ids:
        return np.array(self._chooser.choices(IDS, k=count), dtype=np.int32)


def metrics(url: str) -> dict[str, float]:
    page = httpx.get(f"{url}/metrics", trust_env=False).text
    return {s.name: s.value for family in text_string_to_metric_families(page) for s in family.samples if not s.labels}


def cpu_seconds(worker: Process) -> float:
    times = psutil.Process(worker.pid).cpu_times()
    return times.user + times.system


def measure(worker: Process, sequences: int, options: argparse.Namespace) -> str:
    """One line of the table."""
    caller = Caller(worker.url, sequences, options.context)
    for _ in range(5):
        caller.ask(options.steps)
    before, spent = metrics(worker.url), cpu_seconds(worker)
    times = [caller.ask(options.steps) * 1e3 for _ in range(options.calls)]
    after, spent = metrics(worker.url), cpu_seconds(worker) - spent
    caller.close()
    passes, seconds = (
        after[f"tandem_draft_forward_seconds_{kind}"] - before[f"tandem_draft_forward_seconds_{kind}"]
        for kind in ("count", "sum")
    )
    fastest, average = quantiles(times, n=10)[0], mean(times)
    model = seconds * 1e3 / options.calls
    return (
        f"{sequences:9} {fastest:6.2f} {average:6.2f} {model:6.2f} {average - model:6.2f} "
        f"{passes / options.calls:13.2f} {spent * 1e3 / options.calls:8.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--sequences", default="1,8,32")
    parser.add_argument("--steps", type=int, default=5, help="γ")
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--calls", type=int, default=100)
    options = parser.parse_args()
    on_cuda = torch.cuda.is_available()
    with tempfile.TemporaryDirectory(prefix="draft-overhead-") as folder, Stack() as stack:
        shape, dtype = (DRAFT, torch.bfloat16) if on_cuda else (SMALLEST, torch.float32)
        model = options.model or random_model(Path(folder), shape, dtype)
        worker = stack.draft(model, chains="on", slots=32, context_length=1_024, threads=1)
        worker.wait_ready()
        print("ms a call: the fastest tenth, the mean, the model's part of it, the rest; and the worker's CPU time")
        print(f"{'sequences':>9} {'tenth':>6} {'mean':>6} {'model':>6} {'rest':>6} {'passes a call':>13} {'CPU':>8}")
        for sequences in map(int, options.sequences.split(",")):
            print(measure(worker, sequences, options), flush=True)


if __name__ == "__main__":
    main()
