"""Tokens of plain decoding that are sent together: all of them, in order, and none late."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import pytest

from engines.runtime.rows import Row
from protocol.messages import GenerateRequest, TokenLogprob, VerifyResponse, VerifyTimings
from target_worker.runtime.generate import Gathered
from target_worker.strategies.verdicts import Cut
from testing.fakes.runner import FakeRunner
from testing.wire import async_test, request
from testing.worker_apps import target

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


class Out:
    """Rounds as they are sent, in place of a channel."""

    def __init__(self) -> None:
        self.rounds: list[VerifyResponse] = []

    def put(self, round_: VerifyResponse) -> None:
        self.rounds.append(round_)


def sent(steps_ms: list[float], gather_ms: float, *, stop_at: int | None = None) -> list[VerifyResponse]:
    """The rounds of tokens 0, 1, …, each drawn so long after the one before."""
    now = 100.0

    def clock() -> float:
        return now

    out: Any = Out()
    gathered = Gathered(GenerateRequest(**request(PROMPT)), out, gather_ms / 1000, clock)
    for token, step in enumerate(steps_ms):
        now += step / 1000
        last = token == stop_at
        took = VerifyTimings(queue_ms=0.5, forward_ms=step, sample_ms=0.25, total_ms=step + 0.75, rows=3, sessions=2)
        logprobs = [TokenLogprob(logprob=-float(token), rank=1, top=[])]
        gathered.add(Cut([token], 0, "stop_token" if last else None, token if last else None), logprobs, 7, took)
    return list(out.rounds)


def sizes(steps_ms: list[float], gather_ms: float) -> list[int]:
    return [len(round_.token_ids) for round_ in sent(steps_ms, gather_ms)]


def test_what_comes_before_a_token_has_waited_too_long_is_one_round_and_the_first_token_waits_for_nothing() -> None:
    assert sizes([900, 5, 5, 5, 5, 5, 5, 5, 5], 16) == [1, 4, 4]
    assert sizes([900, 30, 30, 30, 30], 50) == [1, 2, 2]
    assert sizes([900, 5, 5, 5], 0) == [1, 1, 1, 1]


def test_a_token_is_not_held_if_the_next_would_come_too_late() -> None:
    assert sizes([900, 21, 21, 21], 20) == [1, 1, 1, 1]
    assert sizes([900, 5, 30, 5, 5, 5, 5], 12) == [1, 2, 3]


def test_the_last_token_ends_a_round_and_nothing_is_lost() -> None:
    rounds = sent([900, 5, 5], 1000, stop_at=2)
    assert [round_.token_ids for round_ in rounds] == [[0], [1, 2]]
    assert rounds[-1].stop_reason == "stop_token"
    assert rounds[-1].stop_token_id == 2
    assert [entry.logprob for entry in rounds[-1].logprobs or ()] == [-1.0, -2.0]
    timings = rounds[-1].timings
    assert (timings.forward_ms, timings.queue_ms, timings.sample_ms, timings.total_ms) == (10, 1.0, 0.5, 11.5)
    assert (timings.rows, timings.sessions) == (3, 2)


@pytest.mark.parametrize("fields", [{}, {"logprobs": 2}, {"sampling": {"temperature": 0.9, "seed": 2}}])
@async_test
async def test_gathered_rounds_hold_the_same_tokens(fields: dict[str, Any]) -> None:
    asked = {"ids": PROMPT, "max_tokens": 24, **fields}
    async with target(gather_ms=0) as worker:
        alone = await worker.generate(**asked)
    async with target(gather_ms=3_600_000) as worker:
        together = await worker.generate(**asked)
    assert len(alone) > 3
    assert len(together) == 2
    for field in ("token_ids", "logprobs"):
        one, other = ([*chain.from_iterable(line[field] or [] for line in lines)] for lines in (together, alone))
        assert one == other
    assert together[-1]["stop_reason"] == alone[-1]["stop_reason"] is not None


@async_test
async def test_tokens_before_an_error_are_sent() -> None:
    runner = FakeRunner()

    def fail(rows: list[Row]) -> None:
        if rows[0].start > len(PROMPT) + 3:
            raise RuntimeError("broken")

    runner.gate = fail
    async with target(runner, gather_ms=3_600_000) as worker:
        asked = request(ids=PROMPT, max_tokens=24, sampling={"ignore_eos": True})
        response = await worker.client.post("/v1/generate", json=asked)
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert [len(line.get("token_ids", ())) for line in lines] == [1, 4, 0]
    assert "error" in lines[-1]
