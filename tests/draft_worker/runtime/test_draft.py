"""Drafts from a model: the shared noise, q as it was sampled from, candidates that branch where it was least sure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.sampling.draw import draw, draw_top2
from engines.sampling.process import process
from engines.sampling.rows import SamplingRow
from protocol.messages import Sampling
from testing.fakes.runner import FakeRunner, hash_logits
from testing.wire import async_test
from testing.worker_apps import STOP, blended, drafter, target

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
NO_STOP = {"logit_bias": {str(STOP): -100.0}}
WITHOUT_STOP = torch.tensor([0.0] * STOP + [-100.0])


def drawn(ids: Sequence[int], sampling: dict[str, Any], logits: Callable[[Sequence[int]], Tensor] = hash_logits) -> Any:
    """The two best perturbed tokens after `ids` and their gap, straight from the sampling room."""
    row = SamplingRow(Sampling(**{"seed": 7, **sampling}), 7, len(ids), ids, 0, frozenset({STOP}))
    distribution = process(logits(ids)[None], [row])
    best = draw_top2(distribution, [row])
    return int(best.first), int(best.second), float(best.gap)


def chain(ids: Sequence[int], length: int, sampling: dict[str, Any]) -> list[int]:
    done = list(ids)
    for _ in range(length):
        done.append(drawn(done, sampling)[0])
    return done[len(ids) :]


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9}], ids=["greedy", "warm"])
@async_test
async def test_a_draft_model_equal_to_the_target_drafts_its_text(sampling: dict[str, Any]) -> None:
    sampling = {**sampling, **NO_STOP}
    async with drafter() as worker, target() as judge:
        answer = await worker.draft(ids=PROMPT, draft_tokens=5, sampling=sampling)
        assert answer["source"] == "model"
        (candidate,) = answer["candidates"]
        assert candidate["token_ids"] == chain(PROMPT, 5, sampling)
        verdict = await judge.verify(ids=PROMPT, candidates=[candidate], sampling=sampling)
        assert verdict["num_accepted"] == 5


@async_test
async def test_zero_draft_tokens_read_the_context_and_no_more() -> None:
    async with drafter() as worker:
        answer = await worker.draft(ids=PROMPT, draft_tokens=0)
        assert answer["candidates"] == []
        assert worker.runner.held[0] == PROMPT
        worker.runner.passes.clear()
        answer = await worker.draft(ids=PROMPT, held=len(PROMPT), round=1, draft_tokens=2, sampling=NO_STOP)
        assert answer["cached_tokens"] == len(PROMPT) - 1
        assert [len(row.token_ids) for rows in worker.runner.passes for row in rows] == [1, 1]


@async_test
async def test_drafting_stops_after_a_stop_token() -> None:
    async with drafter() as worker:
        sampling = {"temperature": 0.0, "logit_bias": {str(STOP): 100.0}}
        assert (await worker.draft(ids=PROMPT, sampling=sampling))["candidates"][0]["token_ids"] == [STOP]
        ignoring = {**sampling, "ignore_eos": True}
        answer = await worker.draft(ids=PROMPT, sampling=ignoring, round=1)
        assert answer["candidates"][0]["token_ids"] == [STOP] * 4


@async_test
async def test_rounds_reuse_what_was_drafted_and_accepted() -> None:
    async with drafter() as worker:
        first = (await worker.draft(ids=PROMPT, sampling=NO_STOP))["candidates"][0]["token_ids"]
        worker.runner.passes.clear()
        corrected = [*PROMPT, *first[:2], (first[2] + 1) % STOP]
        answer = await worker.draft(ids=corrected, held=len(PROMPT) + 2, round=1, sampling=NO_STOP)
        assert answer["cached_tokens"] == len(PROMPT) + 2
        assert len(worker.runner.passes[0][0].token_ids) == 1


@async_test
async def test_no_more_is_drafted_than_may_be_emitted_or_fits() -> None:
    async with drafter(FakeRunner(2, slot_length=12)) as worker:
        answer = await worker.draft(ids=PROMPT, draft_tokens=8, max_tokens=2, sampling=NO_STOP)
        assert len(answer["candidates"][0]["token_ids"]) == 2
        answer = await worker.draft(ids=PROMPT, draft_tokens=8, round=1, sampling=NO_STOP)
        assert len(answer["candidates"][0]["token_ids"]) == 4


@async_test
async def test_q_is_the_truncated_distribution_that_the_token_came_from() -> None:
    sampling = {"temperature": 1.2, **NO_STOP}
    async with drafter(q_top_k=5) as worker:
        answer = await worker.draft(ids=PROMPT, draft_tokens=6, want_q=True, sampling=sampling)
        (candidate,) = answer["candidates"]
        ids = list(PROMPT)
        for token_id, q, logprob in zip(candidate["token_ids"], candidate["q"], candidate["logprobs"], strict=True):
            row = SamplingRow(Sampling(seed=7, **sampling), 7, len(ids), ids, 0, frozenset({STOP}))
            truncated = process(hash_logits(ids)[None], [row]).truncate(5)
            assert token_id == int(draw(truncated, [row]))
            probabilities = ((hash_logits(ids) + WITHOUT_STOP) / 1.2).softmax(-1)
            best = probabilities.topk(5)
            assert q["token_ids"] == best.indices.tolist()
            expected = best.values / best.values.sum()
            assert torch.tensor(q["logprobs"]).exp() == pytest.approx(expected.numpy(), abs=1e-5)
            assert math.fsum(math.exp(value) for value in q["logprobs"]) == pytest.approx(1.0, abs=1e-9)
            assert logprob == q["logprobs"][q["token_ids"].index(token_id)]
            ids.append(token_id)


@async_test
async def test_a_drafts_q_is_accepted_by_a_target() -> None:
    async with drafter(FakeRunner(logits=blended(0.3))) as worker, target() as judge:
        for number in range(5):
            sampling = {"temperature": 1.0, "seed": number, **NO_STOP}
            drafts = await worker.draft(ids=PROMPT, want_q=True, round=number, sampling=sampling)
            verdict = await judge.verify(
                ids=PROMPT, candidates=drafts["candidates"], strategy="probabilistic", round=number, sampling=sampling
            )
            assert verdict["lossless"]


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.9}], ids=["greedy", "warm"])
@async_test
async def test_candidates_branch_where_the_gap_is_smallest(sampling: dict[str, Any]) -> None:
    sampling = {**sampling, **NO_STOP}
    branched = {**sampling, "temperature": 1.4, "top_p": 0.7}
    async with drafter() as worker:
        answer = await worker.draft(
            ids=PROMPT,
            draft_tokens=6,
            num_candidates=4,
            candidate_temperature=1.4,
            candidate_top_p=0.7,
            sampling=sampling,
        )
        first, *others = [candidate["token_ids"] for candidate in answer["candidates"]]
        assert first == chain(PROMPT, 6, sampling)
        seconds, gaps = [], []
        for place in range(6):
            ids = [*PROMPT, *first[:place]]
            if sampling["temperature"] == 0.0:
                two = (hash_logits(ids) + WITHOUT_STOP).topk(2)
                seconds.append(int(two.indices[1]))
                gaps.append(float(two.values[0] - two.values[1]))
            else:
                _, second, gap = drawn(ids, sampling)
                seconds.append(second)
                gaps.append(gap)
        for other, place in zip(others, sorted(range(6), key=lambda place: gaps[place]), strict=False):
            start = [*first[:place], seconds[place]]
            assert other == [*start, *chain([*PROMPT, *start], 6 - len(start), branched)]
        assert len(others) == 3
        # The branches grew over what candidate 0 left in memory: the next draft takes up to where the first one left.
        left = len(PROMPT) + min(range(6), key=lambda place: gaps[place])
        answer = await worker.draft(ids=[*PROMPT, *first[:5], 1], held=len(PROMPT) + 5, round=1, sampling=sampling)
        assert len(PROMPT) <= answer["cached_tokens"] <= left
        (again,) = answer["candidates"]
        assert again["token_ids"] == chain([*PROMPT, *first[:5], 1], len(again["token_ids"]), sampling)


@async_test
async def test_a_short_draft_has_no_more_candidates_than_places() -> None:
    async with drafter() as worker:
        answer = await worker.draft(ids=PROMPT, draft_tokens=2, num_candidates=8, sampling=NO_STOP)
        assert len(answer["candidates"]) == 3
        assert len({tuple(candidate["token_ids"]) for candidate in answer["candidates"]}) == 3
