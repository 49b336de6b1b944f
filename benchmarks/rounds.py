"""Where a round's time goes, seconds to ready, and tokens a second plain and speculative, on the models as shipped.

    python -m benchmarks.rounds [--target MODEL --draft MODEL]

Plain and speculative requests alternate within one run, on three kinds of prompt; ratios are of one round of the
alternation, and their median is shown. Threads are what the workers choose themselves unless --threads says otherwise.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks import report
from testing.client import Answer, Client
from testing.models import BUNDLED
from testing.processes import Stack
from testing.prompts import KINDS

PHASES = ("draft", "verify_forward", "sample", "queue", "network", "total")


def phase_means(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Mean milliseconds a round spent in each phase between two readings of the gateway's metrics."""

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    counts = {phase: grown(f'tandem_round_seconds_count{{phase="{phase}"}}') for phase in PHASES}
    return {
        phase: 1e3 * grown(f'tandem_round_seconds_sum{{phase="{phase}"}}') / max(1.0, counts[phase]) for phase in PHASES
    }


def overhead(client: Client, speculative: Mapping[str, Any], tokens: int) -> dict[str, float]:
    """Milliseconds of a round: in the workers, drawing apart, and in HTTP, JSON and the gateway."""
    before = client.metrics()
    answers = [
        client.chat(prompt, stream=True, max_tokens=tokens, temperature=0.0, speculative=speculative)
        for prompt in KINDS["copy"]
    ]
    mean = phase_means(before, client.metrics())
    gap = 1e3 * statistics.fmean(gap for answer in answers for gap in answer.gaps)
    beyond = max(0.0, gap - mean["total"])
    return {
        "milliseconds": gap,
        "draft worker": mean["draft"],
        "target forward": mean["verify_forward"],
        "drawing": mean["sample"],
        "target queue": mean["queue"],
        "network, HTTP, JSON": mean["network"],
        "gateway and client": beyond,
        "overhead": mean["network"] + beyond,
    }


def speed(client: Client, kind: str, repeats: int, tokens: int, draft: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens a second on one kind of prompt."""
    plain, drafted = [], []
    for number in range(repeats):
        for prompt in KINDS[kind]:
            options: dict[str, Any] = {"stream": True, "max_tokens": tokens, "temperature": 0.0, "seed": number}
            plain.append(client.chat(prompt, speculative={"enabled": False}, **options))
            drafted.append(client.chat(prompt, speculative=draft, **options))
    pairs = list(zip(plain, drafted, strict=True))
    lengths = [_length(answer) for answer in drafted]
    return {
        "prompts": kind,
        "plain tokens/s": report.median([answer.tokens_per_second() for answer in plain]),
        "speculative tokens/s": report.median([answer.tokens_per_second() for answer in drafted]),
        "ratio": report.median([b.tokens_per_second() / a.tokens_per_second() for a, b in pairs]),
        "acceptance length": report.median(lengths),
        "same text": sum(a.text == b.text for a, b in pairs) / len(pairs),
    }


def _length(answer: Answer) -> float:
    return float((answer.speculation or {}).get("mean_acceptance_length", 0.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=BUNDLED)
    parser.add_argument("--draft", default="lookup")
    parser.add_argument("--threads", type=int, help="of each worker; default: as shipped")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    threads = {"threads": options.threads} if options.threads else {}
    with Stack() as stack:
        target = stack.target(options.target, **threads)
        # Each prompt is asked more than once: the memory of answers would copy the earlier answer.
        draft = stack.draft(options.draft, history_mb=0, **threads)
        gateway = stack.gateway([target.url], [draft.url])
        ready = {process.name: process.wait_ready(600) for process in (draft, target, gateway)}
        with Client(gateway.url, timeout=600) as client:
            client.chat(KINDS["chat"][0], max_tokens=16)
            fixed = {"draft_tokens": 5, "adaptive_speculation": False}
            phases = [
                {"round": "plain", **overhead(client, {"enabled": False}, options.tokens)},
                {"round": "speculative", **overhead(client, fixed, options.tokens)},
            ]
            speeds = [speed(client, kind, options.repeats, options.tokens, {}) for kind in KINDS]
    report.show("Milliseconds of a round (mean)", phases)
    report.show("Decoding, as shipped (medians)", speeds)
    print(f"seconds from start to all ready: {max(ready.values()):.1f}")
    setup = {key: str(value) for key, value in vars(options).items()}
    print(report.write("rounds", {"options": setup, "ready_seconds": ready, "phases": phases, "speeds": speeds}))


if __name__ == "__main__":
    main()
