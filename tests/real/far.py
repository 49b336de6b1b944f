"""Slow workers of the tiny models, and gateways that are far away from their target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing.client import Answer, Client
from testing.patience import eventually
from testing.processes import Process, Stack
from testing.proxy import Proxy
from testing.stacks import BITWISE, speculative

PROMPT = "Tell me a long story about the sea."
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 11},
}
USED, DISCARDED, USED_DEEPER = "used", "discarded", "used with more than one other under way"
"""What came of a verification that was sent ahead."""


@dataclass
class SlowWorkers:
    """A slow target; a drafter that is always right, and one that is not."""

    target: Process
    drafters: dict[str, Process]

    def gateway(self, stack: Stack, target_url: str, **settings: Any) -> Process:
        """One with lookahead over all of them; `auto` has the drafter that is right. Not yet ready."""
        pools = {name: [process.url] for name, process in self.drafters.items()}
        common = {"lookahead": "on", "probe_interval_seconds": 0.3}
        return stack.gateway([target_url], pools["right"], draft_pools=pools, **common, **settings)


@contextmanager
def slow_workers(tiny_model: Path, tiny_draft: Path, logs: Path) -> Iterator[SlowWorkers]:
    with Stack(logs) as stack:
        workers = {**BITWISE, "slots": 4, "threads": 1}
        target = stack.slow("target", 60, model=tiny_model, **workers)
        drafters = {
            "right": stack.slow("draft", 3, "draft-right", model=tiny_model, **workers),
            "other": stack.slow("draft", 3, "draft-other", model=tiny_draft, **workers),
        }
        stack.wait_ready()
        yield SlowWorkers(target, drafters)


@dataclass
class Far:
    """A gateway whose target is behind a proxy that delays, and what answers it is asked for."""

    workers: SlowWorkers
    proxy: Proxy
    client: Client
    max_tokens: int

    def ask(self, drafter: str, during: Callable[[int], None] = lambda chunks: None, **options: Any) -> Answer:
        block = speculative(drafter, 3, adaptive=options.pop("adaptive", False))
        block |= options.pop("speculative", {})
        asked = {"max_tokens": self.max_tokens, "speculative": block, **options}
        return self.client.chat(PROMPT, stream=True, ignore_eos=True, during=during, **asked)

    def plain(self) -> dict[str, Answer]:
        """Without drafts, by sampling."""
        return {name: self.ask("none", **sampling) for name, sampling in SAMPLINGS.items()}

    def count(self, outcome: str) -> float:
        page = self.client.metrics()
        if outcome == USED_DEEPER:
            return sum(page[f'tandem_verifications_beyond_total{{others="{others}"}}'] for others in (2, 3, 4))
        return page[f'tandem_verifications_ahead_total{{outcome="{outcome}"}}']

    def until(self, outcome: str, drafter: str, **options: Any) -> list[Answer]:
        """Ask until a verification that was sent ahead ended so: all the answers."""
        before, found = self.count(outcome), []

        def came() -> bool:
            found.append(self.ask(drafter, **options))
            return self.count(outcome) > before

        eventually(came, f"a verification ahead was {outcome}")
        return found


@contextmanager
def far_from(workers: SlowWorkers, seconds: float, logs: Path, max_tokens: int, **settings: Any) -> Iterator[Far]:
    """Of whose gateway the target is so far away, one way."""
    patient = {"start_timeout_seconds": 120.0, "recovery_timeout_seconds": 120.0}
    with Stack(logs) as stack, Proxy(workers.target.url, seconds) as proxy:
        gateway = workers.gateway(stack, proxy.url, **patient, **settings)
        stack.wait_ready()
        with Client(gateway.url) as client:
            yield Far(workers, proxy, client, max_tokens)
