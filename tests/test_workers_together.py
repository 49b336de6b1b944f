"""Both workers on real (tiny, random) models in batch-invariant mode: the text never depends on how it was drafted."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from config.workers import DraftWorkerConfig, TargetWorkerConfig
from draft_worker.app import create_app as create_draft_app
from target_worker.app import create_app as create_target_app
from tests.fake_runner import FakeRunner
from tests.tiny_models import make_tiny_model, truncate_model
from tests.worker_apps import Drafter, Target, running

LENGTH = 16
PROMPTS = [[5, 9, 11, 5, 9, 11, 5, 9], list(range(40, 61))]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3, "seed": 3},
    {"temperature": 0.7, "top_p": 0.8, "top_k": 40, "seed": 2},
]


class Pair:
    """A target, a draft worker with a model, and an event loop to run them on."""

    def __init__(self, events: asyncio.Runner, target: Target, drafter: Drafter) -> None:
        self.events = events
        self.target = target
        self.drafter = drafter
        self.drafted = self.accepted = 0
        self._serial = 0

    def name(self) -> str:
        self._serial += 1
        return f"s{self._serial}"


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[tuple[Target, Drafter]]:
    common: dict[str, Any] = {
        "batch_invariant": True,
        "device": "cpu",
        "slots": 24,
        "max_queue": 256,
        "context_length": 96,
    }
    model = make_tiny_model(folder / "target", layers=3, context_length=256)
    draft = truncate_model(model, folder / "draft", layers=2)
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(
            running(create_target_app(TargetWorkerConfig(model=str(model), **common)))
        )
        drafter = await stack.enter_async_context(
            running(create_draft_app(DraftWorkerConfig(model=str(draft), **common)))
        )
        yield Target(target, FakeRunner()), Drafter(drafter, FakeRunner())


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with asyncio.Runner() as events:
        both = started(tmp_path_factory.mktemp("models"))
        target, drafter = events.run(both.__aenter__())
        yield Pair(events, target, drafter)
        events.run(both.__aexit__(None, None, None))


async def plain(pair: Pair, prompt: list[int], sampling: dict[str, Any]) -> list[int]:
    lines = await pair.target.generate(
        ids=prompt, session_id=pair.name(), num_prompt_tokens=len(prompt), max_tokens=LENGTH, sampling=sampling
    )
    return [token_id for line in lines for token_id in line["token_ids"]]


async def speculative(
    pair: Pair, prompt: list[int], sampling: dict[str, Any], kind: str, gamma: int, candidates: int
) -> list[int]:
    """What the gateway does, in miniature: draft, verify, append, until the target stops."""
    name, ids, number, held_draft, held = pair.name(), list(prompt), 0, 0, 0
    while True:
        fields = {
            "ids": ids,
            "session_id": name,
            "round": number,
            "num_prompt_tokens": len(prompt),
            "max_tokens": LENGTH - (len(ids) - len(prompt)),
            "sampling": sampling,
        }
        drafts: list[dict[str, Any]] = []
        if kind in ("model", "lookup"):
            answer = await pair.drafter.draft(
                **fields,
                held=held_draft,
                draft_tokens=gamma,
                num_candidates=candidates,
                draft_model="lookup" if kind == "lookup" else None,
                candidate_temperature=1.2 if candidates > 1 else None,
            )
            drafts = answer["candidates"]
            held_draft = len(ids)
        elif kind == "wrong":
            drafts = [{"token_ids": [(ids[-1] + 7 * i + c) % 384 for i in range(gamma)]} for c in range(candidates)]
        answer = await pair.target.verify(**fields, held=held, candidates=drafts)
        held = len(ids)
        ids += answer["token_ids"]
        pair.drafted += answer["num_drafted"]
        pair.accepted += answer["num_accepted"]
        number += 1
        if answer["stop_reason"] is not None:
            return ids[len(prompt) :]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda sampling: f"t{sampling['temperature']}")
def test_the_same_tokens_whoever_drafts_and_however(pair: Pair, sampling: dict[str, Any]) -> None:
    async def check() -> None:
        truths = await asyncio.gather(*(plain(pair, prompt, sampling) for prompt in PROMPTS))
        drafted = itertools.product(("lookup", "model", "wrong"), (1, 3, 8), (1, 3), range(len(PROMPTS)))
        cells = [*drafted, *(("none", 0, 0, place) for place in range(len(PROMPTS)))]
        streams = {cell: speculative(pair, PROMPTS[cell[3]], sampling, *cell[:3]) for cell in cells}
        # All at once: whatever else is in a pass must not matter either.
        for cell, text in zip(streams, await asyncio.gather(*streams.values()), strict=True):
            assert text == truths[cell[3]], cell

    pair.events.run(check())


def test_the_drafts_were_worth_something(pair: Pair) -> None:
    """Equal texts can't show a broken coupling: count what the model's drafts win at temperature 1."""

    async def check() -> None:
        pair.drafted = pair.accepted = 0
        samplings = [{"temperature": 1.0, "seed": seed} for seed in range(12)]
        await asyncio.gather(*(speculative(pair, PROMPTS[1], sampling, "model", 3, 1) for sampling in samplings))

    pair.events.run(check())
    assert pair.accepted / pair.drafted > 0.1
