"""How many clients does a target serve at the same rate a client, with the drafts elsewhere and on its own device?

    python -m benchmarks.capacity

Speculation at a distance (2606.25091) says 1 + γ·td/tv times as many: what drafting takes of a device that both share
is the target's again. Passes last as long as they would on a device that is full: --row-ms a row of the target's,
--draft-row-ms one of the draft's (testing/slow_worker.py; the model's own compute is less). On one device there is one
pass at a time. γ is fixed; so are a round's rows, whatever is accepted. For each number of clients all decode at once,
by turns in both set-ups; the rate is the tokens a second of each, the mean over clients. The number served at a rate
is read between the measured ones, on a straight line.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import report
from testing.client import Answer, Client
from testing.processes import Stack
from testing.tiny_models import make_tiny_model

PLACES = ("elsewhere", "the same device")


def start(stack: Stack, folder: Path, place: str, options: argparse.Namespace) -> Client:
    model = make_tiny_model(folder / "model", hidden=64)
    draft = make_tiny_model(folder / "draft", hidden=64, seed=2) if options.other else model
    device = folder / "device" if place == PLACES[1] else None
    name = "near" if device is not None else "far"
    shared: dict[str, Any] = {
        "slots": max(options.clients),
        "threads": 1,
        "context_length": 512,
        "one_at_a_time": device,
    }
    target = stack.slow("target", options.row_ms, f"target-{name}", row_ms=options.row_ms, model=model, **shared)
    drafter = stack.slow(
        "draft", options.draft_row_ms, f"draft-{name}", row_ms=options.draft_row_ms, model=draft, **shared
    )
    gateway = stack.gateway(
        [target.url], [drafter.url], f"gateway-{name}", draft_pools={"model": [drafter.url]},
        draft_timeout_seconds=60, probe_interval_seconds=30,
    )  # fmt: skip
    stack.wait_ready()
    return Client(gateway.url, timeout=600)


def rate(client: Client, clients: int, options: argparse.Namespace) -> tuple[float, float]:
    """Tokens a second of each client while all run, and tokens a round."""
    block = {"draft_model": "model", "draft_tokens": options.draft_tokens, "adaptive_speculation": False}

    def one(number: int) -> Answer:
        return client.complete(
            [5 + number, 7, 11, 13], stream=True, max_tokens=options.tokens, temperature=0.0, ignore_eos=True,
            speculative=block,
        )  # fmt: skip

    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(one, range(clients)))
    brought = [float((answer.speculation or {}).get("mean_acceptance_length") or 1) for answer in answers]
    speeds = [answer.tokens_per_second(options.draft_tokens + 1) for answer in answers]
    return sum(speeds) / clients, sum(brought) / clients


def served(rates: dict[int, float], wanted: float) -> float:
    """Clients that get this rate; nan if none or all that were measured do."""
    points = sorted(rates.items())
    for (fewer, faster), (more, slower) in pairwise(points):
        if faster >= wanted >= slower and faster > slower:
            return fewer + (more - fewer) * (faster - wanted) / (faster - slower)
    return float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row-ms", type=float, default=12.0)
    parser.add_argument("--draft-row-ms", type=float, default=12.0)
    parser.add_argument("--draft-tokens", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 8])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--other", action="store_true", help="a draft that is often wrong")
    options = parser.parse_args()
    found: dict[str, dict[int, list[float]]] = {place: {count: [] for count in options.clients} for place in PLACES}
    with ExitStack() as stacks:
        folder = Path(stacks.enter_context(tempfile.TemporaryDirectory()))
        clients = {place: start(stacks.enter_context(Stack()), folder, place, options) for place in PLACES}
        for client in clients.values():
            rate(client, 1, options)
        for count in options.clients:
            for place in PLACES * options.repeats:
                speed, tokens = rate(clients[place], count, options)
                found[place][count].append(speed)
                print(f"{count} clients, drafts {place}: {speed:.2f} tokens/s each, {tokens:.1f} a round", flush=True)
    rates = {place: {count: report.median(speeds) for count, speeds in by.items()} for place, by in found.items()}
    verify, draft = (1 + options.draft_tokens) * options.row_ms, options.draft_row_ms
    claim = 1.0 + options.draft_tokens * draft / verify
    rows = []
    for count, wanted in rates[PLACES[1]].items():
        elsewhere = served(rates[PLACES[0]], wanted)
        rows.append(
            {
                "clients on one device": count,
                "tokens/s each": wanted,
                "with drafts elsewhere": elsewhere,
                "times": elsewhere / count,
                "of 1 + γ·td/tv": elsewhere / count / claim,
            }
        )
    report.show(f"Clients served at the same rate; 1 + γ·td/tv is {claim:.2f}", rows)
    kept = {"options": {k: str(v) for k, v in vars(options).items()}, "rates": rates, "rows": rows}
    print(report.write("capacity", kept))


if __name__ == "__main__":
    main()
