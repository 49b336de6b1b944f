"""Thread settings of the workers when target, draft worker and gateway share few cores, all three busy.

    python -m benchmarks.threads [--streams 4]

Each row starts its own processes; speculation with a draft model of a few of the target's layers, γ fixed.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks import report
from testing.client import Client
from testing.models import bundled, truncated
from testing.processes import Stack
from testing.prompts import SHORT

THREADS = [(2, 2), (2, 1), (1, 1)]


def measure(target_threads: int, draft_threads: int, streams: int, tokens: int) -> dict[str, Any]:
    model = bundled()
    with Stack() as stack:
        shared: dict[str, Any] = {"slots": streams, "context_length": 512}
        target = stack.target(model, threads=target_threads, **shared)
        draft = stack.draft(truncated(model), threads=draft_threads, **shared)
        gateway = stack.gateway([target.url], [draft.url])
        stack.wait_ready()
        speculative = {"draft_tokens": 4, "adaptive_speculation": False}
        options: dict[str, Any] = {
            "temperature": 0.0, "ignore_eos": True, "speculative": speculative, "max_tokens": tokens,
        }  # fmt: skip
        with Client(gateway.url, timeout=300) as client, ThreadPoolExecutor(streams) as pool:
            client.chat(SHORT[0], **{**options, "max_tokens": 4})
            began = time.perf_counter()
            answers = list(pool.map(lambda n: client.chat(SHORT[n % len(SHORT)], **options), range(streams)))
            seconds = time.perf_counter() - began
    total = sum(answer.completion_tokens for answer in answers)
    return {"target's threads": target_threads, "draft's": draft_threads, "tokens/s": total / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()
    rows = [measure(*threads, options.streams, options.tokens) for threads in THREADS]
    report.show(f"{options.streams} streams, target, draft model and gateway busy", rows)
    print(report.write("threads", {"rows": rows}))


if __name__ == "__main__":
    main()
