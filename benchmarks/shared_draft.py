"""Is lookahead ever slower than none where many share a draft worker? Several gateways, one draft worker, one target.

    python -m benchmarks.shared_draft

The target's passes last --pass-ms, the draft's --draft-pass-ms (testing/slow_worker.py), however many streams are in
them; a proxy puts --rtt between gateways and target. Each mode of `lookahead` has --gateways; all streams of a run go
through those of one mode, by turns, and their tokens a second after the first --settle are added up. The ratio is the
median over --repeats pairs of runs. The run fails if a median of `auto` is below 0.95 of `off`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import report
from testing.client import Answer, Client
from testing.processes import Stack
from testing.prompts import SHORT
from testing.proxy import Proxy
from testing.tiny_models import make_tiny_model, truncate_model

MODES = ("off", "on", "auto")
AIM = 0.95


def start(stack: Stack, links: ExitStack, folder: Path, options: argparse.Namespace) -> dict[str, list[Client]]:
    model = make_tiny_model(folder / "tiny", layers=4, hidden=64)
    draft = model if options.right else truncate_model(model, folder / "draft", 2)
    shared: dict[str, Any] = {"slots": max(options.streams) + 2, "threads": 1}
    target = stack.slow("target", options.pass_ms, model=model, **shared)
    drafter = stack.slow("draft", options.draft_pass_ms, model=draft, history_mb=0, **shared)
    for process in (target, drafter):
        process.wait_ready()
    far = links.enter_context(Proxy(target.url, options.rtt / 2e3)).url
    clients: dict[str, list[Client]] = {mode: [] for mode in options.modes}
    for mode in options.modes:
        for number in range(options.gateways):
            gateway = stack.gateway(
                [far], [drafter.url], f"gateway-{mode}-{number}", lookahead=mode, probe_interval_seconds=30,
                draft_pools={"model": [drafter.url]},
            )  # fmt: skip
            clients[mode].append(Client(gateway.url, timeout=600))
    stack.wait_ready(300)
    return clients


def run(clients: list[Client], streams: int, options: argparse.Namespace) -> float:
    """Tokens a second, all streams together."""

    def one(number: int) -> Answer:
        return clients[number % len(clients)].chat(
            SHORT[number % len(SHORT)], stream=True, max_tokens=options.tokens, temperature=0.7, seed=number,
            ignore_eos=True, speculative={"draft_model": options.drafter},
        )  # fmt: skip

    with ThreadPoolExecutor(streams) as pool:
        return sum(answer.tokens_per_second(options.settle) for answer in pool.map(one, range(streams)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pass-ms", type=float, default=60.0)
    parser.add_argument("--draft-pass-ms", type=float, default=8.0)
    parser.add_argument("--rtt", type=float, default=5.0, help="milliseconds")
    parser.add_argument("--gateways", type=int, default=4)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--drafter", choices=("auto", "model"), default="model")
    parser.add_argument("--right", action="store_true", help="the draft is the target's own model")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--settle", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with Stack() as stack, ExitStack() as links:
        folder = Path(links.enter_context(tempfile.TemporaryDirectory()))
        clients = start(stack, links, folder, options)
        for streams in options.streams:
            speeds: dict[str, list[float]] = {mode: [] for mode in options.modes}
            for turn in range(options.repeats):
                shift = turn % len(options.modes)
                for mode in options.modes[shift:] + options.modes[:shift]:
                    speeds[mode].append(run(clients[mode], streams, options))
            row: dict[str, Any] = {"streams": streams, "off, tokens/s": report.median(speeds["off"])}
            for mode in options.modes:
                if mode != "off":
                    ratios = [a / b for a, b in zip(speeds[mode], speeds["off"], strict=True)]
                    row |= {f"{mode} over off": report.median(ratios), f"lowest, {mode}": min(ratios)}
            rows.append(row)
            print(row, flush=True)
    report.show(f"{options.gateways} gateways, one draft worker", rows)
    print(report.write("shared_draft", {"options": {k: str(v) for k, v in vars(options).items()}, "rows": rows}))
    sys.exit(any(not row.get("auto over off", 1.0) >= AIM for row in rows))


if __name__ == "__main__":
    main()
