"""Mixed traffic while a worker is killed every so often; every answer compared with plain decoding's."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import psutil

from basics.names import MAX_UNDER_WAY
from testing.client import ApiFailure, Client
from testing.processes import Process, Stack
from testing.prompts import SHORT
from testing.proxy import Proxy
from testing.stacks import BITWISE, speculative

SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 1.0, "top_p": 0.9, "seed": 4, "presence_penalty": 0.5},
]
HUNG_SECONDS = 120.0


@dataclass
class Tally:
    """The results of the requests. `outcomes` counts right, wrong, hung and refused ones (by status)."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, str]] = field(default_factory=list)
    tokens: int = 0
    kills: int = 0
    prepared: float = 0.0
    """Draft tokens that lookahead had prepared and that were used."""
    ahead: float = 0.0
    """Verifications that were sent before the last verdict was back, and were used."""
    memory: list[dict[str, float]] = field(default_factory=list)
    """MiB: of the gateway, and of each worker under its name and process id."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def growth(self) -> float:
        """The gateway's memory at the end over that after the first quarter."""
        return _growth([reading["gateway"] for reading in self.memory])

    @property
    def growths(self) -> dict[str, float]:
        """The workers' likewise, each in the longest of its lives: from its start, or a kill, to the next."""
        lives: dict[str, list[float]] = {}
        for reading in self.memory:
            for life, memory in reading.items():
                lives.setdefault(life, []).append(memory)
        longest: dict[str, list[float]] = {}
        for life, readings in lives.items():
            name = life.partition(" ")[0]
            longest[name] = max(longest.get(name, []), readings, key=len)
        return {name: _growth(readings) for name, readings in longest.items() if name != "gateway"}


def soak(
    model: Path | str,
    draft_model: Path | str,
    seconds: float,
    *,
    streams: int,
    every: float,
    tokens: int,
    engine: str = "torch",
    pass_ms: float = 0.0,
    rtt_ms: float = 0.0,
) -> Tally:
    """Run it; `every` is the seconds between kills, `engine` the targets'.

    With `pass_ms` the targets' passes last so long, and with `rtt_ms` they are so far away: what is prepared is used.
    Most requests are for the draft model then.
    """
    tally = Tally()
    workers: dict[str, Any] = {**BITWISE, "slots": 8, "threads": 1}
    verifying = workers if engine == "torch" else {"batch_invariant": True, "slots": 8, "threads": 1, "engine": engine}
    drafters = ["none", "model", "model", "model"] if pass_ms else ["none", "model", "lookup", "lookup"]
    with Stack() as stack, ExitStack() as links:
        if pass_ms:
            targets = [stack.slow("target", pass_ms, f"target-{i}", model=model, **verifying) for i in range(2)]
        else:
            targets = [stack.target(model, f"target-{i}", **verifying) for i in range(2)]
        drafts = [stack.draft(draft_model, "draft-model", **workers), stack.draft("lookup", "draft-lookup")]
        pools = {"model": [drafts[0].url], "lookup": [drafts[1].url]}
        urls = [target.url for target in targets]
        if rtt_ms:
            urls = [links.enter_context(Proxy(url, rtt_ms / 2e3)).url for url in urls]
        ahead: dict[str, Any] = {"lookahead": "on", "verifications_in_flight": MAX_UNDER_WAY}
        gateway = stack.gateway(urls, [drafts[1].url], draft_pools=pools, probe_interval_seconds=0.5, **ahead)
        stack.wait_ready()
        with Client(gateway.url, timeout=HUNG_SECONDS) as client, ThreadPoolExecutor(streams + 1) as pool:
            expected = _expected(client, tokens)
            until = time.monotonic() + seconds
            killing = pool.submit(_kill, [*targets, *drafts], until, every, tally, random.Random(1))
            asking = [
                pool.submit(_ask, client, expected, until, tokens, tally, number, drafters) for number in range(streams)
            ]
            while time.monotonic() < until:
                time.sleep(min(5.0, max(0.0, until - time.monotonic())))
                tally.memory.append({"gateway": gateway.rss() / 2**20, **_memory([*targets, *drafts])})
            for future in [killing, *asking]:
                future.result()
            page = client.metrics()
            tally.prepared = page["tandem_lookahead_tokens_total"]
            tally.ahead = page['tandem_verifications_ahead_total{outcome="used"}']
    return tally


def _growth(readings: list[float]) -> float:
    """The last over that after the first quarter."""
    return readings[-1] / readings[len(readings) // 4] if readings else 1.0


def _memory(workers: list[Process]) -> dict[str, float]:
    found = {}
    for worker in workers:
        with suppress(psutil.NoSuchProcess):
            if memory := worker.rss():  # one that has just been killed holds nothing, until it is reaped
                found[f"{worker.name} {worker.pid}"] = memory / 2**20
    return found


def _expected(client: Client, tokens: int) -> dict[tuple[int, int], str]:
    return {
        (p, s): client.chat(prompt, max_tokens=tokens, speculative={"enabled": False}, **sampling).text
        for p, prompt in enumerate(SHORT)
        for s, sampling in enumerate(SAMPLINGS)
    }


def _ask(
    client: Client,
    expected: dict[tuple[int, int], str],
    until: float,
    tokens: int,
    tally: Tally,
    number: int,
    drafters: list[str],
) -> None:
    """One request after another, each drawn, until the time is over."""
    choose = random.Random(number)
    while time.monotonic() < until:
        (p, s), text = choose.choice(list(expected.items()))
        drafter = choose.choice(drafters)
        options = {"max_tokens": tokens, "speculative": speculative(drafter, choose.randint(1, 8)), **SAMPLINGS[s]}
        found = ""
        try:
            answer = client.chat(SHORT[p], stream=choose.random() < 0.7, **options)
            found = answer.text
            outcome = "right" if found == text else "wrong"
        except ApiFailure as failure:
            outcome = f"refused {failure.status}"
            time.sleep(0.5)
        except httpx.TimeoutException:
            outcome = "hung"
        with tally.lock:
            tally.outcomes[outcome] += 1
            tally.tokens += answer.completion_tokens if outcome == "right" else 0
            if outcome == "wrong":
                tally.wrong.append({"drafter": drafter, "expected": text, "found": found, "options": repr(options)})


def _kill(workers: list[Process], until: float, every: float, tally: Tally, choose: random.Random) -> None:
    victims = cycle(choose.sample(workers, len(workers)))  # so that a short run, too, kills more than lookup
    while time.monotonic() + every < until:
        time.sleep(every)
        victim = next(victims)
        victim.kill()
        victim.restart()
        tally.kills += 1
        # One at a time: the claim is that the loss of one worker goes unnoticed, not that of all of them.
        victim.wait_ready()
