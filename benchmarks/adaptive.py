"""Does adaptation keep what speculation costs within bounds, whatever the draft?

    python -m benchmarks.adaptive

A scripted draft worker (testing/scripted_draft.py) is always wrong, always right, slow, or stalls now and then; one
stream and eight. Plain and adaptive runs alternate; the ratio of their tokens a second, after the first --settle
tokens, is shown as the median over --repeats pairs of runs, and the lowest of them. With --lookahead auto the same
questions go to a second gateway, too, whose lookahead is on or auto, and `of off` is its speed over that of the first.
The run fails if a median over plain decoding is below 0.95, the aim whatever the draft, one over no lookahead below
0.97, or if a drafter that is right drafted nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from benchmarks import report
from testing.client import Answer, Client
from testing.models import BUNDLED, bundled
from testing.processes import Stack
from testing.prompts import KINDS
from testing.stacks import Services, start

DRAFTS: dict[str, dict[str, Any]] = {
    "always wrong": {"mode": "wrong", "delay": 0.0, "every": 1},
    "wrong and slow": {"mode": "wrong", "delay": 0.1, "every": 1},
    "always right": {"mode": "right", "delay": 0.0, "every": 1},
    "right but slow": {"mode": "right", "delay": 0.3, "every": 1},
    "right, stalling": {"mode": "right", "delay": 3.0, "every": 5},
}
AIM = 0.95
AIM_OF_OFF = 0.97
Row = dict[str, Any]
ADAPTIVE = {"draft_model": "scripted", "draft_tokens": 5, "adaptive_speculation": True}
PROMPTS = [prompt for prompts in KINDS.values() for prompt in prompts]


def run(client: Client, streams: int, tokens: int, speculative: dict[str, Any]) -> list[Answer]:
    """Run this many streams at once, each with its own prompt, the same prompts every time."""

    def one(number: int) -> Answer:
        return client.chat(
            PROMPTS[number % len(PROMPTS)],
            stream=True,
            max_tokens=tokens,
            temperature=0.7,
            seed=number,
            ignore_eos=True,
            speculative=speculative,
        )

    with ThreadPoolExecutor(streams) as pool:
        return list(pool.map(one, range(streams)))


def speed(answers: list[Answer], settle: int) -> float:
    return sum(answer.tokens_per_second(settle) for answer in answers)


def behave(services: Services, **script: Any) -> None:
    httpx.post(f"{services.drafters['scripted'].url}/behave", json=script, trust_env=False).raise_for_status()


def teach(services: Services, clients: Sequence[Client], streams: int, tokens: int) -> None:
    """Show the scripted drafter the texts, so that `right` knows what is right, and each gateway the target's times."""
    behave(services, mode="wrong", delay=0.0)
    for client in clients:
        run(client, streams, tokens, {**ADAPTIVE, "adaptive_speculation": False, "draft_tokens": 1})
        run(client, streams, tokens, {"enabled": False})


def measure(
    services: Services, clients: Sequence[Client], draft: str, streams: int, options: argparse.Namespace
) -> Row:
    """`clients`: of the gateway without lookahead, and of the one that looks ahead, if there is one."""
    behave(services, **DRAFTS[draft])
    ratios: list[float] = []
    of_off: list[float] = []
    same = drafted = 0
    for number in range(options.repeats):
        plain = run(services.client, streams, options.tokens, {"enabled": False})
        order = clients if number % 2 else clients[::-1]
        found = {id(client): run(client, streams, options.tokens, ADAPTIVE) for client in order}
        speeds = [speed(found[id(client)], options.settle) for client in clients]
        ratios.append(speeds[0] / speed(plain, options.settle))
        of_off += [later / speeds[0] for later in speeds[1:]]
        same += sum(
            len({answer.text for answer in answers}) == 1 for answers in zip(plain, *found.values(), strict=True)
        )
        drafted += sum((answer.speculation or {})["num_draft_tokens"] for answer in found[id(services.client)])
    row: Row = {
        "draft": draft,
        "streams": streams,
        "ratio": report.median(ratios),
        "lowest": min(ratios),
        "drafted a token": drafted / (options.repeats * streams * options.tokens),
        "same text": same / (options.repeats * streams),
    }
    return row | ({"of off": report.median(of_off), "lowest of off": min(of_off)} if of_off else {})


def missed(rows: Sequence[Row]) -> list[str]:
    """The results that miss the aim."""
    found = []
    for row in rows:
        case = f"{row['draft']}, streams: {row['streams']}"
        if not row["ratio"] >= AIM:  # also catches nan
            found.append(f"{case}: {row['ratio']:.3f} of plain decoding, below {AIM}")
        if not row.get("of off", 1.0) >= AIM_OF_OFF:
            found.append(f"{case}: {row['of off']:.3f} of no lookahead, below {AIM_OF_OFF}")
        if DRAFTS[row["draft"]]["mode"] == "right" and not row["drafted a token"]:
            found.append(f"{case}: nothing was drafted, so nothing is shown")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=BUNDLED)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--settle", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs, plain and adaptive; at least 3 to tell")
    parser.add_argument("--lookahead", choices=("off", "auto", "on"), default="off", help="of the second gateway")
    parser.add_argument("--drafts", nargs="+", choices=DRAFTS, default=list(DRAFTS))
    options = parser.parse_args()
    model = bundled() if options.target == BUNDLED else options.target
    rows = []
    with Stack() as stack:
        workers = {"slots": max(options.streams), "context_length": 1024}
        services = start(stack, model, drafters=["scripted"], worker_settings=workers)
        clients = [services.client]
        if options.lookahead != "off":
            drafters = [services.drafters["scripted"].url]
            pools = {"scripted": drafters}
            settings = {"draft_pools": pools, "lookahead": options.lookahead}
            second = stack.gateway([services.target.url], drafters, "gateway-ahead", **settings)
            second.wait_ready()
            clients.append(Client(second.url))
        for streams in options.streams:
            teach(services, clients, streams, options.tokens)
            for draft in options.drafts:
                rows.append(measure(services, clients, draft, streams, options))
                print(rows[-1], flush=True)
    report.show(f"Adaptive over plain, tokens/s after {options.settle} of {options.tokens} tokens", rows)
    print(report.write("adaptive", {"rows": rows, "options": {k: str(v) for k, v in vars(options).items()}}))
    below = missed(rows)
    print("".join(f"{line}\n" for line in below), end="")
    sys.exit(bool(below))


if __name__ == "__main__":
    main()
