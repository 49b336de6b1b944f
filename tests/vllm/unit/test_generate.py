"""From vLLM's tokens, and what was proposed at which length, to rounds."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from engines.channel import Channel
from engines.drawing import Limits, RequestSampling
from engines.vllm.proposer.bound import Bound
from engines.vllm.reports import Reports
from engines.vllm.requests import Answer
from protocol.messages import GenerateRequest, VerifyResponse
from target_worker.vllm.generate import Decoding, accepted_of, steps
from testing.wire import async_test, request


class Engine:
    """A vLLM that answers one token, and whose model runner knows only the parameters of a request."""

    rows = 1

    @asynccontextmanager
    async def stream(self, ids: list[int], params: Any, salt: str | None) -> AsyncIterator[AsyncIterator[Answer]]:
        self.salt, self.params = salt, params
        logprobs = {5: SimpleNamespace(logprob=-0.1, rank=1)}

        async def answers() -> AsyncIterator[Answer]:
            yield Answer([5], [logprobs], [], 0, None, 0.0, 0.1)

        yield answers()


@pytest.mark.parametrize("salt", [None, "mine"])
@async_test
async def test_the_salt_of_a_drafted_request_reaches_vllm_and_the_proposer(
    monkeypatch: pytest.MonkeyPatch, salt: str | None
) -> None:
    kinds = SimpleNamespace(RequestOutputKind=SimpleNamespace(DELTA=1))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=lambda **given: SimpleNamespace(**given)))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", kinds)
    asked = GenerateRequest.model_validate(request([1, 2, 3], salt=salt, max_tokens=1))
    engine, reports = Engine(), Reports()
    rounds: Channel[VerifyResponse] = Channel(4, lambda: None)
    drawing = RequestSampling(asked, [1, 2, 3], Limits(frozenset(), 64))
    await Decoding(engine, asked, drawing, rounds, [], 5.0).with_drafts(reports, 3)  # type: ignore[arg-type]
    runner = SimpleNamespace(
        requests={"r": SimpleNamespace(sampling_params=engine.params)}, input_batch=SimpleNamespace(req_ids=["r"])
    )
    bound = Bound(runner, reports.path)
    assert (engine.salt, bound.cache_salt(0), bound.most_drafted(0)) == (salt, salt, 3)
    reports.close()


def test_tokens_of_several_steps_are_separated() -> None:
    proposals = {5: [1, 2], 8: [7], 9: [4, 4], 11: [9]}
    assert list(steps(5, [1, 2, 3, 6, 4, 5], proposals)) == [(3, [1, 2]), (1, [7]), (2, [4, 4])]
    assert proposals == {11: [9]}, "what is still under way stays"


def test_a_prompts_first_token_was_not_drafted() -> None:
    assert list(steps(4, [3], {5: [1, 2]})) == [(1, [])]


def test_if_a_report_is_missing_the_accepted_draft_is_inferred() -> None:
    assert list(steps(4, [3, 2, 1], {})) == [(3, [3, 2])]
    assert list(steps(4, [3], {})) == [(1, [])]


def test_accepted_tokens_are_the_common_beginning() -> None:
    assert accepted_of([1, 2, 3], [1, 2]) == 2
    assert accepted_of([1, 2, 3], [1, 9, 3]) == 1
    assert accepted_of([1], [1, 2, 3]) == 1
    assert accepted_of([4], []) == 0
