"""Many at once: speed, latency and memory over streams; long prompts among short ones; prefix reuse in a chat.

    python -m benchmarks.load [--draft FOLDER] [--streams 1 2 4 8]

Three measurements on one set-up: (1) total tokens/s, TTFT and inter-token latency by number of streams, plain and
speculative in alternation (aim: 8 streams at least 2.5 times one); (2) the inter-token latency of short streams while
long prompts arrive (aim: p99 under 3 times p50); (3) TTFT of a chat's second turn with a history of about 2,000 tokens,
held by the target and not (aim: under a fifth).
"""

from __future__ import annotations

import argparse
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks import report
from testing.client import Answer, Client
from testing.models import BUNDLED
from testing.processes import Process, Stack
from testing.prompts import KINDS, long_prompt

PROMPTS = [prompt for prompts in KINDS.values() for prompt in prompts]
HISTORY_WORDS = 1500
LONG_WORDS = 900


def burst(client: Client, streams: int, tokens: int, speculative: dict[str, Any]) -> tuple[list[Answer], float]:
    """Run this many streams from the same moment on; returns the seconds until all were done."""
    salt = f"burst-{time.time_ns()}"

    def one(number: int) -> Answer:
        prompt = PROMPTS[number % len(PROMPTS)]
        options: dict[str, Any] = {"max_tokens": tokens, "temperature": 0.7, "seed": number, "ignore_eos": True}
        # A salt of its own, so that an earlier burst's prompts in the target's memory do not help this one.
        options["cache_salt"] = salt
        return client.chat(prompt, stream=True, speculative=speculative, **options)

    began = time.perf_counter()
    with ThreadPoolExecutor(streams) as pool:
        answers = list(pool.map(one, range(streams)))
    return answers, time.perf_counter() - began


def level(client: Client, streams: int, options: argparse.Namespace, processes: list[Process]) -> list[dict[str, Any]]:
    """One number of streams, plain and speculative."""
    modes = {"plain": {"enabled": False}, "speculative": {}}
    runs: dict[str, list[tuple[list[Answer], float]]] = {mode: [] for mode in modes}
    for _ in range(options.repeats):
        for mode, speculative in modes.items():
            runs[mode].append(burst(client, streams, options.tokens, speculative))
    rows = []
    for mode, found in runs.items():
        answers = [answer for many, _ in found for answer in many]
        gaps = [gap for answer in answers for gap in answer.gaps]
        ttfts = [answer.ttft for answer in answers]
        totals = [sum(answer.completion_tokens for answer in many) / seconds for many, seconds in found]
        rows.append(
            {
                "streams": streams,
                "mode": mode,
                "tokens/s": report.median(totals),
                "TTFT p50 ms": 1e3 * report.quantile(ttfts, 0.5),
                "TTFT p99 ms": 1e3 * report.quantile(ttfts, 0.99),
                "ITL p50 ms": 1e3 * report.quantile(gaps, 0.5),
                "ITL p99 ms": 1e3 * report.quantile(gaps, 0.99),
                **{f"{process.name} MiB": process.rss() / 2**20 for process in processes},
            }
        )
    return rows


def long_among_short(client: Client, tokens: int, shorts: int = 4) -> dict[str, Any]:
    """Inter-token latency of short streams, alone and while long prompts keep arriving."""
    alone, _ = burst(client, shorts, tokens, {"enabled": False})
    stop = threading.Event()

    def arrive() -> int:
        number = int(time.time())  # prompts that no run has sent before
        while not stop.is_set():
            number += 1
            client.chat(long_prompt(LONG_WORDS, number), max_tokens=1, speculative={"enabled": False})
        return number

    with ThreadPoolExecutor(1) as pool:
        arriving = pool.submit(arrive)
        beside, _ = burst(client, shorts, tokens, {"enabled": False})
        stop.set()
        arriving.result()
    quiet = [gap for answer in alone for gap in answer.gaps]
    busy = [gap for answer in beside for gap in answer.gaps]
    p50, p99 = report.quantile(busy, 0.5), report.quantile(busy, 0.99)
    return {
        "ITL p50 ms alone": 1e3 * report.quantile(quiet, 0.5),
        "ITL p50 ms": 1e3 * p50,
        "ITL p99 ms": 1e3 * p99,
        "p99 / p50": p99 / p50,
        "p99 / p50 alone": p99 / report.quantile(quiet, 0.5),
    }


def prefix_reuse(client: Client, repeats: int) -> dict[str, Any]:
    """TTFT of turn two of a chat. A salt of its own keeps the second kind from finding what the first one left."""
    held, fresh = [], []
    history_tokens = 0
    for number in range(repeats):
        first = [{"role": "user", "content": long_prompt(HISTORY_WORDS, number)}]
        options: dict[str, Any] = {"stream": True, "temperature": 0.0, "speculative": {"enabled": False}}
        answer = client.chat(first, max_tokens=16, cache_salt=f"held-{number}", **options)
        history_tokens = answer.prompt_tokens
        second = [*first, {"role": "assistant", "content": answer.text}, {"role": "user", "content": "And the sky?"}]
        held.append(client.chat(second, max_tokens=4, cache_salt=f"held-{number}", **options).ttft)
        fresh.append(client.chat(second, max_tokens=4, cache_salt=f"fresh-{number}", **options).ttft)
    with_reuse, without = report.median(held), report.median(fresh)
    return {
        "history tokens": history_tokens,
        "TTFT ms with reuse": 1e3 * with_reuse,
        "TTFT ms without": 1e3 * without,
        "ratio": with_reuse / without,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=BUNDLED)
    parser.add_argument("--draft", default="lookup")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--context-length", type=int, default=3072)
    options = parser.parse_args()
    with Stack() as stack:
        workers: dict[str, Any] = {"slots": options.slots, "context_length": options.context_length}
        target = stack.target(options.target, **workers)
        draft = stack.draft(options.draft, **workers)
        gateway = stack.gateway([target.url], [draft.url])
        stack.wait_ready()
        with Client(gateway.url, timeout=900) as client:
            client.chat(PROMPTS[0], max_tokens=16)
            rows: list[dict[str, Any]] = []
            for streams in options.streams:
                rows += level(client, streams, options, [target, draft, gateway])
                print(rows[-2:], flush=True)
            mixed = long_among_short(client, 2 * options.tokens)
            reuse = prefix_reuse(client, options.repeats + 1)
    report.show("Streams at once", rows)
    report.show("Short streams while long prompts arrive", [mixed])
    report.show("A chat's second turn", [reuse])
    setup = {key: str(value) for key, value in vars(options).items()}
    print(report.write("load", {"options": setup, "levels": rows, "long_among_short": mixed, "prefix_reuse": reuse}))


if __name__ == "__main__":
    main()
