"""`probabilistic` all the way: from the draft worker's q over the wire to the verdict, on models that are a hash.

The strategy is tested on tensors (strategies/); here it is what the workers make of a request that must reach it whole:
every place's own q, p, noise and history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engines.sampling.distribution import Distribution
from engines.sampling.draw import draw
from engines.sampling.process import process
from engines.sampling.rows import SamplingRow
from protocol.messages import Sampling, TopK
from target_worker.strategies import STRATEGIES
from target_worker.strategies.drafts import Target as TargetSide
from target_worker.strategies.drafts import pad_drafts
from target_worker.strategies.probabilistic import pad_q
from testing.fakes.runner import FakeRunner, hash_logits
from testing.wire import async_test
from testing.worker_apps import Drafter, Target, blended, drafter, target
from tests.target_worker.strategies.simulator import g_test

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
DRAFT = blended(0.5)
PENALISED = {"temperature": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.7}
GAMMA = 4


def rows_along(ids: Sequence[int], sampling: Sampling, seed: int) -> list[SamplingRow]:
    """What decides the token after the prompt and after each of the ids that follow it."""
    ends = range(len(PROMPT), len(ids) + 1)
    return [SamplingRow(sampling, seed, end, ids[:end], len(PROMPT)) for end in ends]


def distribution(logits: Any, rows: list[SamplingRow]) -> Distribution:
    """The processed distributions of a model, row by row."""
    return process(torch.stack([logits(list(row.history)) for row in rows]), rows)


@pytest.mark.parametrize("fields", [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}, PENALISED])
@async_test
async def test_a_rounds_verdict_is_the_strategys_on_each_places_own_q(fields: dict[str, Any]) -> None:
    counts = [0] * (GAMMA + 1)
    async with drafter(FakeRunner(logits=DRAFT), q_top_k=6) as drafts, target() as worker:
        for seed in range(60):
            sampling = {**fields, "seed": seed, "ignore_eos": True}
            shared: dict[str, Any] = {
                "ids": PROMPT, "sampling": sampling, "num_prompt_tokens": len(PROMPT), "session_id": None
            }  # fmt: skip
            (candidate,) = (await drafts.draft(**shared, draft_tokens=GAMMA, want_q=True))["candidates"]
            answer = await worker.verify(**shared, candidates=[candidate], strategy="probabilistic")
            drafted, q = candidate["token_ids"], [TopK(**entry) for entry in candidate["q"]]
            assert len({tuple(entry.token_ids) for entry in q}) > 1, "each place has a q of its own"
            rows = rows_along([*PROMPT, *drafted], Sampling(**sampling), seed)
            sent = distribution(DRAFT, rows[:-1]).truncate(6)
            assert draw(sent, rows[:-1]).tolist() == drafted, "drawn from what was sent"
            for (ids, logprobs), entry in zip(sent.entries(), q, strict=True):
                assert dict(zip(entry.token_ids, entry.logprobs, strict=True)) == pytest.approx(
                    dict(zip(ids, logprobs, strict=True)), abs=1e-5
                )
            p = distribution(hash_logits, rows)
            outcome = STRATEGIES["probabilistic"].verify(
                pad_drafts([drafted], [range(GAMMA + 1)], q=pad_q([q])), TargetSide(p, rows, draw(p, rows))
            )
            accepted = int(outcome.num_accepted[0])
            assert answer["num_accepted"] == accepted
            assert answer["token_ids"] == [*drafted[:accepted], int(outcome.next_token[0])]
            counts[accepted] += 1
    assert min(counts) > 0, "every length of an accepted prefix occurs"


def concentrated(share: float) -> Any:
    """Three tokens have nearly all the mass, different ones after every prefix, so two tokens fall into few cells."""

    def logits(ids: Sequence[int]) -> torch.Tensor:
        kept = blended(share)(ids).topk(4)
        return torch.full((32,), -30.0).scatter(0, kept.indices, kept.values)

    return logits


def exact_pairs(sampling: Sampling) -> torch.Tensor:
    """Probabilities of the two tokens after the prompt, float64 [32 ** 2]."""
    (row,) = rows_along(PROMPT, sampling, 0)
    first = distribution(concentrated(0.0), [row]).logprobs().exp()[0]
    rows = [SamplingRow(sampling, 0, len(PROMPT) + 1, [*PROMPT, token], len(PROMPT)) for token in range(32)]
    return (first[:, None] * distribution(concentrated(0.0), rows).logprobs().exp()).flatten()


async def two_tokens(drafts: Drafter, worker: Target, seed: int) -> list[int]:
    """By rounds of γ = 2; where the first draft is rejected, another round drafts the second place again."""
    ids = list(PROMPT)
    while len(ids) < len(PROMPT) + 2:
        shared: dict[str, Any] = {
            "ids": ids, "sampling": {"seed": seed}, "num_prompt_tokens": len(PROMPT), "session_id": None
        }  # fmt: skip
        (candidate,) = (await drafts.draft(**shared, draft_tokens=2, want_q=True))["candidates"]
        ids += (await worker.verify(**shared, candidates=[candidate], strategy="probabilistic"))["token_ids"]
    return ids[len(PROMPT) : len(PROMPT) + 2]


def test_two_tokens_have_the_targets_joint_distribution() -> None:
    runs, at_once = 1000, 10

    async def generate() -> list[list[int]]:
        found: list[list[int]] = []
        async with (
            drafter(FakeRunner(16, logits=concentrated(0.6)), slots=16) as drafts,
            target(FakeRunner(16, logits=concentrated(0.0)), slots=16) as worker,
        ):
            for begin in range(0, runs, at_once):
                seeds = range(begin, begin + at_once)
                found += await asyncio.gather(*(two_tokens(drafts, worker, seed) for seed in seeds))
        return found

    pairs = torch.tensor(asyncio.run(generate()))
    counts = torch.bincount(pairs[:, 0] * 32 + pairs[:, 1], minlength=32**2)
    assert int((counts > 4).sum()) > 8
    assert g_test(counts, exact_pairs(Sampling(seed=0))) > 1e-4
