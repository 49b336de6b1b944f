"""vLLM's drafter prepares what follows a whole draft, and leaves vLLM to any other call at once."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from draft_worker.outcomes import BONUS, Ahead, Guess
from draft_worker.vllm.engine import VllmDrafter
from engines.drawing import Limits
from engines.vllm.requests import Answer
from protocol.errors import QueueFull
from protocol.messages import DraftRequest
from testing.fakes.vllm_engine import following
from testing.wire import async_test, pause, request

STOP = 31
PROMPT = [3, 4, 5]


class Engine:
    """A vLLM that goes on with the text a token at a time, requests with more than `freely` tokens when told to."""

    def __init__(self, freely: int = 64) -> None:
        self.calls = self.rows = 0
        self.max_sequences = 4
        self.asked: list[list[int]] = []
        self.aborted = 0
        self.tokens = asyncio.Semaphore(0)
        self._freely = freely

    async def run(self, work: Coroutine[Any, Any, Any], deadline: float = math.inf) -> Any:
        self.calls += 1
        try:
            return await work
        finally:
            self.calls -= 1

    @asynccontextmanager
    async def stream(self, ids: list[int], params: Any, salt: str | None) -> AsyncIterator[AsyncIterator[Answer]]:
        self.asked.append(list(ids))
        text = list(ids)

        async def answers() -> AsyncIterator[Answer]:
            for _ in range(params.max_tokens):
                if params.max_tokens > self._freely:
                    await self.tokens.acquire()
                text.append(following(text))
                entries = {text[-1]: SimpleNamespace(logprob=1.0)}
                yield Answer([text[-1]], [entries], [], 0, None, 0.0, 0.1)

        try:
            yield answers()
        except BaseException:
            self.aborted += 1
            raise

    async def ask(self, ids: list[int], params: Any, salt: str | None = None) -> Answer:
        async with self.stream(ids, params, salt) as answers:
            found = [answer async for answer in answers]
        tokens = [token for answer in found for token in answer.token_ids]
        return Answer(tokens, [one for answer in found for one in answer.logprobs], [], 0, None, 0.0, 0.1)


@pytest.fixture(autouse=True)
def parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = SimpleNamespace(RequestOutputKind=SimpleNamespace(DELTA=1, FINAL_ONLY=2))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=lambda **given: SimpleNamespace(**given)))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", kinds)


def drafter_of(engine: Engine) -> VllmDrafter:
    async def no_grammar(*args: Any) -> None:
        return None

    model: Any = SimpleNamespace(
        engine=engine,
        info=SimpleNamespace(vocabulary=None),
        limits=Limits(frozenset([STOP]), 64),
        grammars=SimpleNamespace(state=no_grammar),
    )
    return VllmDrafter(model, 8)


def asked(**fields: Any) -> DraftRequest:
    given = {"draft_tokens": 2, "max_tokens": 40, "sampling": {"temperature": 0.0}, **fields}
    return DraftRequest.model_validate(request(PROMPT, **given))


def text(count: int) -> list[int]:
    """What follows the prompt."""
    ids = list(PROMPT)
    while len(ids) < len(PROMPT) + count:
        ids.append(following(ids))
    return ids[len(PROMPT) :]


def ahead_of(drafted: list[int]) -> Ahead:
    guesses = [Guess(0, 0, 3), Guess(BONUS, 0, 4), Guess(BONUS, 1, 4)]
    return Ahead(drafted, guesses, 8, chains=True)


@async_test
async def test_the_draft_goes_on_after_its_own_next_token() -> None:
    drafter, ahead = drafter_of(Engine()), ahead_of(text(2))
    await drafter.look_ahead(asked(), PROMPT, 1, ahead, math.inf)
    (branch,) = ahead.branches
    assert (branch.at, branch.tokens) == (2, text(7)[2:])
    assert ahead.likely == [[], [], [text(3)[2]]]
    assert ahead.following(text(3)) == (branch, 1)
    assert [tokens for tokens, _ in ahead.draws] == [2, 3, 4, 5]


@async_test
async def test_another_call_ends_it_and_keeps_what_has_come() -> None:
    engine = Engine(freely=2)
    drafter, ahead = drafter_of(engine), ahead_of(text(2))
    looking = asyncio.create_task(drafter.look_ahead(asked(), PROMPT, 1, ahead, math.inf))
    for _ in range(3):
        engine.tokens.release()
    while not (ahead.branches and len(ahead.branches[0].tokens) == 3):
        await pause()
    found = await drafter.draft(asked(), PROMPT, 2, math.inf)
    assert found.candidates[0].token_ids == text(2)
    with pytest.raises(QueueFull):
        await looking
    assert (engine.aborted, engine.calls, drafter.calls) == (1, 0, 0)
    assert ahead.branches[0].tokens == text(5)[2:]


@async_test
async def test_who_awaits_it_can_end_it() -> None:
    engine = Engine(freely=0)
    drafter, ahead = drafter_of(engine), ahead_of(text(2))
    looking = asyncio.create_task(drafter.look_ahead(asked(), PROMPT, 1, ahead, math.inf))
    while not engine.asked:
        await pause()
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    assert (engine.aborted, engine.calls) == (1, 0)


@async_test
async def test_it_is_not_begun_beside_other_calls_or_where_vllm_is_full() -> None:
    engine = Engine()
    drafter = drafter_of(engine)
    drafter.calls = 1
    with pytest.raises(QueueFull):
        await drafter.look_ahead(asked(), PROMPT, 1, ahead_of(text(2)), math.inf)
    drafter.calls, engine.calls = 0, engine.max_sequences
    with pytest.raises(QueueFull):
        await drafter.look_ahead(asked(), PROMPT, 1, ahead_of(text(2)), math.inf)
    assert not engine.asked


@async_test
async def test_it_ends_where_there_is_no_time_or_nothing_can_follow() -> None:
    drafter, ahead = drafter_of(Engine()), ahead_of(text(2))
    left = iter([True, True, False])
    ahead.time_to_draw = lambda tokens: next(left)
    await drafter.look_ahead(asked(), PROMPT, 1, ahead, math.inf)
    assert ahead.branches[0].tokens == text(5)[2:]
    for drafted, fields in (([STOP], {}), (text(2), {"max_tokens": 3})):
        engine = Engine()
        await drafter_of(engine).look_ahead(asked(**fields), PROMPT, 1, ahead_of(drafted), math.inf)
        assert not engine.asked
