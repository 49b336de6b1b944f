"""What a verification takes from one request's prompt_logprobs, and what it asks for place by place (no vLLM runs)."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from engines.drawing import Limits, RequestSampling
from engines.vllm.requests import Answer, Logprobs, answer_of
from protocol.messages import VerifyRequest, VerifyResponse
from target_worker.vllm.verify import VllmVerification
from testing.wire import async_test, request

CONTEXT = [5, 6, 7, 8]
LIE = 99
"""Uninitialised memory at each place: a draft token that the model would not take."""


def own(length: int) -> int:
    """The model's token after `length` others."""
    return 10 + length


def entries(*told: tuple[int, float]) -> Logprobs:
    return {token: SimpleNamespace(logprob=logprob, rank=rank) for rank, (token, logprob) in enumerate(told, 1)}


class OneModel:
    """A VllmEngine for `VllmVerification`. Its prompt_logprobs are wrong up to `never_computed`. Reports `cached`."""

    rows = 0

    def __init__(self, never_computed: int, cached: int | None, **metrics: int) -> None:
        self.asked: list[int] = []
        self.ties: set[int] = set()
        self._never_computed = never_computed
        self._cached = cached
        self._metrics = metrics

    async def ask(self, ids: list[int], params: Any, salt: str | None = None) -> Answer:
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            prompt_logprobs = [None, *(self._entries(index) for index in range(1, len(ids)))]
        else:
            self.asked.append(len(ids))
        token = own(len(ids))
        output = SimpleNamespace(
            outputs=[SimpleNamespace(token_ids=[token], logprobs=[entries((token, -0.1))])],
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=self._cached,
            metrics=SimpleNamespace(scheduled_ts=0.0, queued_ts=0.0, **self._metrics),
        )
        return answer_of(output, 0.0)

    def _entries(self, index: int) -> Logprobs:
        if index in self.ties:
            return entries((LIE, -0.7), (own(index), -0.7))
        return entries((LIE if index <= self._never_computed else own(index), -0.1), (3, -2.0))


async def verify(engine: OneModel, drafted: list[int], **sampling: Any) -> VerifyResponse:
    message = request(CONTEXT, sampling={"temperature": 0.0, **sampling}, candidates=[{"token_ids": drafted}])
    asked = VerifyRequest.model_validate(message)
    drawing = RequestSampling(asked, CONTEXT, Limits(frozenset(), 64))
    return await VllmVerification(engine, asked, drawing, False).response()  # type: ignore[arg-type]


RIGHT = [own(4), own(5), own(6)]


@async_test
async def test_one_request_answers_all_places_that_it_computed() -> None:
    engine = OneModel(never_computed=3, cached=3, num_preemptions=0)
    answer = await verify(engine, RIGHT)
    assert answer.token_ids == [*RIGHT, own(7)]
    assert engine.asked == []


@async_test
async def test_places_that_were_cached_are_asked_for() -> None:
    engine = OneModel(never_computed=5, cached=5, num_preemptions=0)
    for drafted in (RIGHT, [LIE, LIE, LIE]):
        answer = await verify(engine, drafted)
        assert answer.token_ids == ([*RIGHT, own(7)] if drafted is RIGHT else [own(4)])
        assert engine.asked == [4, 5]
        engine.asked.clear()


@pytest.mark.parametrize(
    ("cached", "metrics"),
    [
        pytest.param(3, {"num_preemptions": 1}, id="preempted: the cached tokens are those of before"),
        pytest.param(None, {"num_preemptions": 0}, id="cached tokens not reported"),
        pytest.param(3, {}, id="preemptions not reported"),
    ],
)
def test_nothing_but_the_last_place_is_trusted(
    monkeypatch: pytest.MonkeyPatch, cached: int | None, metrics: dict[str, int]
) -> None:
    monkeypatch.setattr("engines.vllm.requests.counts_cached_anew", lambda: False)

    @async_test
    async def asks_for_each() -> None:
        engine = OneModel(never_computed=6, cached=cached, **metrics)
        answer = await verify(engine, [LIE, LIE, LIE])
        assert answer.token_ids == [own(4)]
        assert engine.asked == [4, 5, 6]

    asks_for_each()


@async_test
async def test_vllm_0_24_reports_no_preemption_but_counts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.vllm.requests.counts_cached_anew", lambda: True)
    engine = OneModel(never_computed=5, cached=5)
    assert (await verify(engine, RIGHT)).token_ids == [*RIGHT, own(7)]
    assert engine.asked == [4, 5]


@async_test
async def test_ties_are_asked_for() -> None:
    """The order of two entries of one log-probability does not show which id is the lowest."""
    engine = OneModel(never_computed=3, cached=3, num_preemptions=0)
    engine.ties = {5}
    assert (await verify(engine, RIGHT)).token_ids == [*RIGHT, own(7)]
    assert engine.asked == [5]


@async_test
async def test_entries_without_a_number_are_asked_for() -> None:
    engine = OneModel(never_computed=3, cached=3, num_preemptions=0)
    engine._entries = lambda index: entries((LIE, math.nan), (3, math.nan))  # type: ignore[method-assign]
    assert (await verify(engine, RIGHT)).token_ids == [*RIGHT, own(7)]
    assert engine.asked == [4, 5, 6]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.5},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
        {"repetition_penalty": 1.1},
        {"logit_bias": {"5": 0.1}},
        {"min_tokens": 20},
    ],
)
def test_if_more_than_the_logits_decides_all_places_are_asked_for(sampling: dict[str, Any]) -> None:
    @async_test
    async def asks_for_each() -> None:
        engine = OneModel(never_computed=3, cached=3, num_preemptions=0)
        assert (await verify(engine, RIGHT, **sampling)).token_ids == [*RIGHT, own(7)]
        assert engine.asked == [4, 5, 6, 7]

    asks_for_each()
