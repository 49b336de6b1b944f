"""K-quants, whose prompts are computed apart: the same bits whatever a slot held, and wherever a text is taken up."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from config.workers import TargetWorkerConfig
from target_worker.app import create_app
from testing.fakes.runner import FakeRunner
from testing.wire import async_test
from testing.worker_apps import Target, running
from tests.engines.llama_cpp.tiny_gguf import tiny_gguf

VOCABULARY = 384
ANSWER = 20
PROMPT = 30


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("gguf"), "Q4_K", hidden=256, layers=4, spread=1.0, context_length=512)


@asynccontextmanager
async def target(file: Path) -> AsyncIterator[Target]:
    config = TargetWorkerConfig(
        model=str(file), engine="llama_cpp", batch_invariant=True, threads=1, slots=4, context_length=256
    )
    async with running(create_app(config)) as client:
        yield Target(client, FakeRunner())


def some_ids(count: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, VOCABULARY) for _ in range(count)]


class Answers:
    """Of one target, each in as many bits as the wire shows: ids and the logprobs of the likeliest ones."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._serial = 0
        self.cached = 0

    async def __call__(
        self, ids: list[int], *, fresh: bool = False, prompt: int | None = None, count: int = ANSWER
    ) -> tuple[list[int], list[Any]]:
        """`fresh`: as if no slot held anything."""
        self._serial += 1
        rounds = await self._target.generate(
            ids=ids, session_id=None, num_prompt_tokens=len(ids) if prompt is None else prompt, max_tokens=count,
            sampling={"temperature": 0.8, "seed": 3, "ignore_eos": True}, logprobs=8,
            salt=f"s{self._serial}" if fresh else None,
        )  # fmt: skip
        self.cached = rounds[0]["cached_tokens"]
        found = [token_id for round_ in rounds for token_id in round_["token_ids"]]
        return found, [entry for round_ in rounds for entry in round_["logprobs"]]


@async_test
async def test_a_chats_next_turn_is_as_if_nothing_had_been_said_here(file: Path) -> None:
    async with target(file) as worker:
        answers = Answers(worker)
        first = some_ids(PROMPT, 1)
        said, _ = await answers(first)
        for turn in range(2, 5):
            first = [*first, *said, *some_ids(turn, turn)]
            told = await answers(first)
            assert 0 < answers.cached < len(first) - 1, "some of it is reused, not all"
            assert told == await answers(first, fresh=True)
            said = told[0]


@async_test
async def test_a_shorter_prompt_that_begins_the_same(file: Path) -> None:
    async with target(file) as worker:
        answers = Answers(worker)
        long = some_ids(60, 2)
        await answers(long)
        for length in (41, 40, 39, 17, 2):
            told = await answers(long[:length])
            assert answers.cached == length - 1, "a prompt's keys are reused for a prompt"
            assert told == await answers(long[:length], fresh=True)


@async_test
async def test_an_answer_is_taken_up_elsewhere(file: Path) -> None:
    """As after a target's death: the context comes again, and what was generated is computed as what is generated."""
    async with target(file) as worker:
        answers = Answers(worker)
        prompt = some_ids(PROMPT, 3)
        said, logprobs = await answers(prompt)
        for at in (1, 2, 3, 7, 12):
            rest = await answers([*prompt, *said[:at]], fresh=True, prompt=PROMPT, count=ANSWER - at)
            assert rest == (said[at:], logprobs[at:])
