"""`probabilistic` with a drafter of another vocabulary: over the wire, and the text keeps the target's distribution."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models

from protocol.messages import Sampling
from protocol.worker_info import TokenizerInfo
from testing.fakes.runner import VOCABULARY, FakeRunner
from testing.vocabularies import tokenizer_info
from testing.wire import async_test
from testing.worker_apps import Drafter, Target, drafter, target
from tests.target_worker.strategies.simulator import g_test
from tests.target_worker.test_probabilistic import PROMPT, concentrated, exact_pairs

OURS = "abcdefghijklmnopqrstuvwxyz012345"
THEIRS = "5x4wABCDjihgfevutsrqponmlk210ycz"
"""The draft model's tokens by id: a few that the target lacks, the others elsewhere."""
OF = [OURS.find(token) for token in THEIRS]


def characters(tokens: str) -> TokenizerInfo:
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer_info(tokenizer)


SPELLED = [4, 5, 9, 2, 6, 10, 11, 12]
"""A prompt of tokens that both have."""
TARGET, DRAFT = characters(OURS), characters(THEIRS)


def in_other_columns(ids: Sequence[int]) -> torch.Tensor:
    """What a near model says, under its own ids, and much besides that the target can't say."""
    near = concentrated(0.6)([OF[token_id] for token_id in ids])
    return torch.stack([near[ours] if ours >= 0 else near.max() for ours in OF])


async def learned(drafts: Drafter) -> dict[str, Any]:
    status, told = await drafts.post("/v1/vocabulary", {"tokenizer": TARGET.model_dump()})
    assert status == 200, told
    return dict(told)


@async_test
async def test_what_is_learned_is_told_and_other_ids_are_refused_by_name() -> None:
    async with drafter(FakeRunner(logits=in_other_columns), tokenizer=DRAFT, other_vocabulary="shared_ids") as drafts:
        fields: dict[str, Any] = {"ids": PROMPT, "session_id": None, "vocabulary": TARGET.vocabulary.fingerprint}
        refusals = [
            (409, "unknown_vocabulary", "vocabulary", await drafts.post("/v1/draft", _message(**fields))),
            (400, "bad_request", "tokenizer.vocabulary.fingerprint", await _learn(drafts, DRAFT)),
            (400, "bad_request", "tokenizer.tokenizer_json", await _learn(drafts, _changed(tokenizer_json="{}"))),
            (400, "bad_request", "tokenizer.tokenizer_json", await _learn(drafts, _changed(tokenizer_json="[1"))),
            (400, "bad_request", "tokenizer.tokenizer_json", await _learn(drafts, _of_another())),
            (422, "invalid_request", "tokenizer.vocabulary", await _learn(drafts, None)),
        ]
        for status, code, field, (found, body) in refusals:
            assert (found, body["error"]["code"], body["error"]["field"]) == (status, code, field), body
        told = await learned(drafts)
        assert told == await learned(drafts)
        shared = sum(ours >= 0 for ours in OF)
        assert (told["way"], told["q"], told["shared"]) == ("shared_ids", True, shared)
        model = (await drafts.client.get("/v1/model")).json()
        assert model["translations"] == [told]
        answer = await drafts.draft(**fields)
        assert answer["candidates"][0]["token_ids"]


@async_test
async def test_shared_text_refuses_q_by_name() -> None:
    async with drafter(FakeRunner(logits=in_other_columns), tokenizer=DRAFT, other_vocabulary="shared_text") as drafts:
        told = await learned(drafts)
        assert (told["way"], told["q"]) == ("shared_text", False)
        status, body = await drafts.post("/v1/draft", _message(ids=PROMPT, want_q=True, vocabulary=told["vocabulary"]))
        assert (status, body["error"]["field"]) == (400, "want_q")


@async_test
async def test_drafts_are_drawn_among_the_shared_with_the_targets_noise_and_q_sums_to_one() -> None:
    """A drafter that says what the target's model does, in other columns: with the noise of the target's ids and places
    it draws the target's own tokens; what the target lacks never comes."""

    def same_model(ids: Sequence[int]) -> torch.Tensor:
        said = concentrated(0.0)([OF[token_id] for token_id in ids])
        return torch.stack([said[ours] if ours >= 0 else said.max() + 2 for ours in OF])

    async with (
        drafter(FakeRunner(logits=same_model), tokenizer=DRAFT, other_vocabulary="shared_ids") as drafts,
        target(FakeRunner(logits=concentrated(0.0))) as worker,
    ):
        name = (await learned(drafts))["vocabulary"]
        reachable = {ours for ours in OF if ours >= 0}
        right = whole = 0
        for seed in range(40):
            sampling = {"seed": seed, "temperature": 1.3, "ignore_eos": True}
            shared: dict[str, Any] = {"ids": SPELLED, "session_id": None, "sampling": sampling}
            answer = await drafts.draft(**shared, draft_tokens=4, want_q=seed % 2 == 0, vocabulary=name)
            (candidate,) = answer["candidates"]
            for top in candidate["q"] or []:
                assert set(top["token_ids"]) <= reachable
                assert torch.tensor(top["logprobs"]).exp().sum().item() == pytest.approx(1.0, abs=1e-4)
            verdict = await worker.verify(**shared, candidates=[{"token_ids": candidate["token_ids"]}])
            right += verdict["num_accepted"]
            whole += verdict["num_accepted"] == 4 or verdict["token_ids"][-1] not in reachable
        assert whole == 40, "wrong only where the target says what the drafter can't"
        assert right > 100


async def two_tokens(drafts: Drafter, worker: Target, seed: int, name: str) -> list[int]:
    ids = list(PROMPT)
    while len(ids) < len(PROMPT) + 2:
        shared: dict[str, Any] = {
            "ids": ids, "sampling": {"seed": seed}, "num_prompt_tokens": len(PROMPT), "session_id": None
        }  # fmt: skip
        (candidate,) = (await drafts.draft(**shared, draft_tokens=2, want_q=True, vocabulary=name))["candidates"]
        ids += (await worker.verify(**shared, candidates=[candidate], strategy="probabilistic"))["token_ids"]
    return ids[len(PROMPT) : len(PROMPT) + 2]


def test_two_tokens_have_the_targets_joint_distribution() -> None:
    runs, at_once = 1000, 50  # many in a pass, whose cost they share: the tokens are each seed's own

    async def generate() -> list[list[int]]:
        found: list[list[int]] = []
        async with (
            drafter(
                FakeRunner(64, logits=in_other_columns), tokenizer=DRAFT, slots=64, other_vocabulary="shared_ids"
            ) as drafts,
            target(FakeRunner(64, logits=concentrated(0.0)), slots=64) as worker,
        ):
            name = (await learned(drafts))["vocabulary"]
            for begin in range(0, runs, at_once):
                seeds = range(begin, begin + at_once)
                found += await asyncio.gather(*(two_tokens(drafts, worker, seed, name) for seed in seeds))
        return found

    pairs = torch.tensor(asyncio.run(generate()))
    counts = torch.bincount(pairs[:, 0] * VOCABULARY + pairs[:, 1], minlength=VOCABULARY**2)
    assert int((counts > 4).sum()) > 8
    assert g_test(counts, exact_pairs(Sampling(seed=0))) > 1e-4


def _message(**fields: Any) -> dict[str, Any]:
    from testing.wire import request

    return request(**{"draft_tokens": 4, **fields})


async def _learn(drafts: Drafter, tokenizer: TokenizerInfo | None) -> tuple[int, Any]:
    body = tokenizer.model_dump() if tokenizer is not None else {**TARGET.model_dump(), "vocabulary": None}
    return await drafts.post("/v1/vocabulary", {"tokenizer": body})


def _changed(**fields: Any) -> TokenizerInfo:
    return TARGET.model_copy(update=fields)


def _of_another() -> TokenizerInfo:
    return TARGET.model_copy(update={"tokenizer_json": characters(OURS[::-1]).tokenizer_json})
