"""An agent's turns as shipped: prose, code, a tool call and a quotation, by `auto` and by each drafter alone.

    python -m benchmarks.mixed_text [--draft bundled-draft] [--turns 4] [--tokens 64] [--temperatures 0 0.7]

One target, one draft worker and one gateway with their defaults. A turn is one request of each kind; each is asked
plainly and of each drafter in an order that changes. A single drafter is named by the request (`draft_model`), and the
gateway chooses γ for it; each way has a `cache_salt` of its own, so that `auto` remembers its own answers alone.
`mixed` are all tokens of a way over all its seconds. Texts must be the same. Aim: `auto` never more than 3% slower than
the best single drafter on any kind, and faster than each on mixed text.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Mapping
from typing import Any

from benchmarks import report
from benchmarks.bundled_draft import Sums
from benchmarks.memory import requests
from tandem.up_flags import draft_threads
from testing.client import Client
from testing.models import BUNDLED, bundled
from testing.processes import Stack
from testing.prompts import KINDS

KINDS_OF_TEXT = ("prose", "code", "tool call", "quotation")


def asked(kind: str, turn: int) -> tuple[str, dict[str, Any]]:
    """A user's message, and what else the request says."""
    if kind == "tool call":
        message, options = requests("tool loop")[turn % len(requests("tool loop"))]
        return message, {"response_format": options["response_format"]}
    prompts = KINDS[{"prose": "chat", "code": "code", "quotation": "copy"}[kind]]
    return prompts[turn % len(prompts)], {}


def measure(client: Client, ways: Mapping[str, dict[str, Any]], temperature: float, turns: int, tokens: int) -> Any:
    """The table's rows at one temperature: one for each kind of text, and one for all of it."""
    sums = {kind: {way: Sums() for way in ways} for kind in (*KINDS_OF_TEXT, "mixed")}
    salt, different = uuid.uuid4().hex, 0
    for turn in range(turns):
        for place, kind in enumerate(KINDS_OF_TEXT):
            first = (turn + place) % len(ways)
            texts = set()
            for way in [*ways, *ways][first : first + len(ways)]:
                message, options = asked(kind, turn)
                answer = client.chat(
                    message,
                    stream=True,
                    max_tokens=tokens,
                    temperature=temperature,
                    seed=turn,
                    cache_salt=f"{salt} {way}",
                    speculative=ways[way],
                    **options,
                )
                for kept in (kind, "mixed"):
                    sums[kept][way].tokens += answer.completion_tokens - 1
                    sums[kept][way].seconds += answer.seconds - answer.ttft
                texts.add(answer.text)
            different += len(texts) != 1
    rows = []
    for kind, by_way in sums.items():
        row: dict[str, Any] = {"kind": kind, "temperature": temperature, "plain tokens/s": by_way["plain"].speed}
        ratios = {way: one.speed / by_way["plain"].speed for way, one in by_way.items() if way != "plain"}
        best = max(ratio for way, ratio in ratios.items() if way != "auto")
        rows.append({**row, **ratios, "auto / best": ratios["auto"] / best, "texts that differ": different})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=BUNDLED)
    parser.add_argument("--draft", default="bundled-draft")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.7])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    with Stack() as stack:
        target = stack.target(bundled() if options.target == BUNDLED else options.target)
        draft = stack.draft(options.draft, "draft", threads=draft_threads(options.draft))
        gateway = stack.gateway([target.url], [draft.url], "gateway")
        stack.wait_ready()
        client = Client(gateway.url, timeout=900)
        ways: dict[str, dict[str, Any]] = {"plain": {"enabled": False}, "auto": {}}
        ways |= {name: {"draft_model": name} for name in ("lookup", options.draft)}
        rows = []
        for way in ways.values():  # warms up what a pair measures once, at its beginning
            client.chat("Hello, who are you?", max_tokens=48, speculative=way)
        for temperature in options.temperatures:
            rows += measure(client, ways, temperature, options.turns, options.tokens)
            for row in rows[-len(KINDS_OF_TEXT) - 1 :]:
                print({key: round(v, 3) if isinstance(v, float) else v for key, v in row.items()}, flush=True)
    report.show("Times plain decoding's tokens/s", rows)
    print(report.write("mixed_text", {"rows": rows, "options": {k: str(v) for k, v in vars(options).items()}}))


if __name__ == "__main__":
    main()
