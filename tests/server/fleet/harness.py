"""A fleet over fake workers, and requests to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from config.gateway import GatewayConfig
from protocol.messages import Sampling
from server.backend import GenerationRequest, Round, Speculation
from server.fleet_backend import Fleet
from testing.fakes.model import continuation
from testing.fakes.worker import FakeWorker
from testing.patience import PATIENCE, until

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
SPECULATION = Speculation(
    enabled=True,
    draft_tokens=3,
    draft_model=None,
    num_candidates=1,
    candidate_temperature=None,
    candidate_top_p=None,
    strategy="deterministic",
    acceptance_threshold=0.1,
    max_speculation_depth=8,
    adaptive=False,
)
PLAIN = replace(SPECULATION, enabled=False)


def request(max_tokens: int = 40, prompt: list[int] | None = None, **changes: Any) -> GenerationRequest:
    return GenerationRequest(
        request_id="r",
        prompt=prompt or PROMPT,
        max_tokens=max_tokens,
        sampling=Sampling(seed=1),
        choice_index=0,
        speculation=replace(SPECULATION, **changes),
    )


def expected(max_tokens: int = 40, prompt: list[int] | None = None) -> list[int]:
    return continuation(prompt or PROMPT, max_tokens)


async def collect(fleet: Fleet, asked: GenerationRequest) -> list[Round]:
    return [round_ async for round_ in fleet.rounds(asked)]


def tokens(rounds: Iterable[Round]) -> list[int]:
    return [token for round_ in rounds for token in round_.token_ids]


@asynccontextmanager
async def fleet_over(
    targets: list[FakeWorker], drafters: list[FakeWorker], wait: bool = True, **settings: Any
) -> AsyncIterator[Fleet]:
    """Starts the workers and a fleet over them; at the end checks that nothing is left behind."""
    before = asyncio.all_tasks()
    for worker in (*targets, *drafters):
        await worker.start()
    settings = {
        # Long, since a busy machine is slow; tests of a timeout set a short one.
        "connect_timeout_seconds": 20.0,
        "draft_timeout_seconds": 30.0,
        "start_timeout_seconds": PATIENCE,
        "recovery_timeout_seconds": PATIENCE,
        "probe_interval_seconds": 0.1,
        **settings,
    }
    config = GatewayConfig(target_urls=[t.url for t in targets], draft_urls=[d.url for d in drafters], **settings)
    fleet = Fleet(config)
    await fleet.start()
    try:
        if wait:
            await until(lambda: "unknown" not in fleet.ready()[1])
        yield fleet
    finally:
        await fleet.close()
        for worker in (*targets, *drafters):
            if worker.up:
                await worker.kill()
        await until(lambda: not (asyncio.all_tasks() - before - {asyncio.current_task()}))


def counted(fleet: Fleet, name: str) -> float:
    return sum(
        sample.value
        for collector in fleet.collectors()
        for family in collector.collect()
        for sample in family.samples
        if sample.name == name
    )


async def hang() -> None:
    await asyncio.sleep(3600)


def set_to(**values: Any) -> Any:
    """A fault of a worker: these fields of its answer are replaced."""
    return lambda answer: {**answer, **values}
