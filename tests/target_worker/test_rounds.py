"""Rounds on a target: whatever is drafted, by whomever and however, the text is plain decoding's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.fakes.runner import FakeRunner
from testing.wire import async_test
from testing.worker_apps import STOP, Target, target

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
DRAFT = st.tuples(st.integers(0, 6), st.lists(st.integers(0, 31), max_size=6))
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7, "seed": 3},
    {"temperature": 1.5, "top_p": 0.8, "seed": 4},
    {"temperature": 1.0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.7, "seed": 5},
    {"temperature": 1.0, "min_tokens": 12, "logit_bias": {"31": 8.0}, "top_k": 9, "min_p": 0.01, "seed": 6},
    {"temperature": 1.0, "ignore_eos": True, "logit_bias": {"31": 5.0}, "stop_token_ids": [17], "seed": 8},
]


async def plain(worker: Target, **fields: Any) -> list[int]:
    rounds = await worker.generate(ids=PROMPT, session_id="plain", num_prompt_tokens=len(PROMPT), **fields)
    return [token_id for line in rounds for token_id in line["token_ids"]]


async def in_rounds(
    worker: Target, drafts: Any, max_tokens: int, session_id: str = "rounds", **fields: Any
) -> list[int]:
    """Generate by rounds; `drafts(emitted)` gives the candidates for each."""
    ids, held, number = list(PROMPT), 0, 0
    while True:
        emitted = ids[len(PROMPT) :]
        candidates = [{"token_ids": list(candidate)} for candidate in drafts(emitted)]
        answer = await worker.verify(
            ids=ids,
            held=held,
            round=number,
            candidates=candidates,
            session_id=session_id,
            num_prompt_tokens=len(PROMPT),
            max_tokens=max_tokens - len(emitted),
            **fields,
        )
        kept = candidates[answer["candidate"]]["token_ids"] if candidates else []
        assert answer["num_drafted"] == len(kept) == len(answer["acceptance_mask"])
        assert sum(answer["acceptance_mask"]) == answer["num_accepted"] <= len(answer["token_ids"])
        assert answer["token_ids"][: answer["num_accepted"]] == kept[: answer["num_accepted"]]
        assert answer["lossless"]
        held = len(ids)
        ids += answer["token_ids"]
        number += 1
        if answer["stop_reason"] is not None:
            return ids[len(PROMPT) :]


def drafter(kind: str, truth: Sequence[int], gamma: int, candidates: int) -> Any:
    """Drafts that are right, wrong, or right up to a point; further candidates branch off somewhere."""
    rng = random.Random(f"{kind} {gamma} {candidates}")

    def drafts(emitted: Sequence[int]) -> list[list[int]]:
        right = [*truth[len(emitted) : len(emitted) + gamma], *[0] * gamma][:gamma]
        found = []
        for _ in range(candidates):
            draft = list(right)
            if kind == "wrong":
                draft = [(token_id + 1) % 32 for token_id in draft]
            elif kind == "mixed":
                place = rng.randrange(gamma + 1)
                draft[place:] = [rng.randrange(32) for _ in draft[place:]]
            found.append(draft[: rng.randrange(gamma + 1)] if kind == "mixed" else draft)
        return found

    return drafts


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda sampling: f"t{sampling['temperature']}-{len(sampling)}")
@async_test
async def test_the_text_does_not_depend_on_drafts(sampling: dict[str, Any]) -> None:
    async with target() as worker:
        truth = await plain(worker, sampling=sampling, max_tokens=20)
        assert len(truth) > 3
        assert await in_rounds(worker, lambda emitted: [], 20, sampling=sampling) == truth
        for kind in ("right", "wrong", "mixed"):
            for gamma in (1, 3, 8):
                for candidates in (1, 3):
                    drafts = drafter(kind, truth, gamma, candidates)
                    name = f"{kind}-{gamma}-{candidates}"
                    assert await in_rounds(worker, drafts, 20, name, sampling=sampling) == truth, name


def test_any_drafts_at_all_leave_a_rounds_tokens_as_they_are() -> None:
    with asyncio.Runner() as events:
        running = target()
        worker = events.run(running.__aenter__())

        @settings(max_examples=40, deadline=None)
        @given(st.lists(DRAFT, max_size=4), st.integers(1, 12), st.integers(0, 5))
        def check(drafts: list[tuple[int, list[int]]], max_tokens: int, seed: int) -> None:
            events.run(one_round(worker, drafts, max_tokens, seed))

        try:
            check()
        finally:
            events.run(running.__aexit__(None, None, None))


async def one_round(worker: Target, drafts: list[tuple[int, list[int]]], max_tokens: int, seed: int) -> None:
    """Verify candidates, each a correct prefix and then another token, and compare the answer with plain decoding."""
    fields = {"sampling": {"temperature": 0.9, "seed": seed}, "max_tokens": max_tokens}
    truth = await plain(worker, **fields)
    candidates = [truth[:right] + wrong for right, wrong in drafts]
    sent = [{"token_ids": candidate} for candidate in candidates]
    answer = await worker.verify(ids=PROMPT, candidates=sent, num_prompt_tokens=len(PROMPT), session_id=None, **fields)
    got = answer["token_ids"]
    longest = max((agreement(candidate, truth) for candidate in candidates), default=0)
    assert answer["num_accepted"] == longest
    assert got == truth[: longest + 1]
    assert (answer["stop_reason"] is not None) == (len(got) == len(truth))


def agreement(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@async_test
async def test_a_fully_accepted_draft_earns_a_bonus_token() -> None:
    async with target() as worker:
        sampling = {"temperature": 0.0}
        truth = await plain(worker, sampling=sampling, max_tokens=5)
        answer = await worker.verify(
            ids=PROMPT, candidates=[{"token_ids": truth[:3]}], sampling=sampling, num_prompt_tokens=len(PROMPT)
        )
        assert answer["token_ids"] == truth[:4]
        assert answer["num_accepted"] == 3
        assert answer["acceptance_mask"] == [True] * 3


@async_test
async def test_an_accepted_stop_token_ends_the_round_without_another() -> None:
    async with target() as worker:
        sampling = {"temperature": 0.0, "logit_bias": {str(STOP): 100.0}}
        answer = await worker.verify(ids=PROMPT, candidates=[{"token_ids": [STOP, STOP, 5]}], sampling=sampling)
        assert answer["token_ids"] == [STOP]
        assert answer["num_accepted"] == 1
        assert answer["acceptance_mask"] == [True, False, False]
        assert (answer["stop_reason"], answer["stop_token_id"]) == ("stop_token", STOP)


@async_test
async def test_max_tokens_and_the_contexts_end_cut_a_round() -> None:
    async with target(FakeRunner(2, slot_length=12)) as worker:
        sampling = {"temperature": 0.0, "ignore_eos": True}
        truth = await plain(worker, sampling=sampling, max_tokens=20)
        assert len(truth) == 12 - len(PROMPT), "plain decoding stops at the context's end"
        drafts = [{"token_ids": [*truth, *truth]}]
        short = await worker.verify(ids=PROMPT, candidates=drafts, sampling=sampling, max_tokens=2)
        assert (short["token_ids"], short["stop_reason"], short["num_drafted"]) == (truth[:2], "length", 8)
        full = await worker.verify(ids=PROMPT, candidates=drafts, sampling=sampling, round=1, max_tokens=20)
        assert (full["token_ids"], full["stop_reason"]) == (truth, "length")


@async_test
async def test_a_round_computes_nothing_that_the_session_holds() -> None:
    async with target() as worker:
        sampling = {"temperature": 0.0}
        truth = await plain(worker, sampling=sampling, max_tokens=12)
        worker.runner.passes.clear()
        await in_rounds(worker, drafter("right", truth, 3, 1), len(truth), sampling=sampling)
        sizes = [len(row.token_ids) for rows in worker.runner.passes for row in rows]
        assert sizes[0] <= len(PROMPT) + 3
        assert max(sizes[1:]) <= 1 + 3, "the last token and the drafts, no more"


@async_test
async def test_the_path_that_wins_in_a_tree_is_kept() -> None:
    """Otherwise the text would be the same, but the next round would find other ids in memory and recompute them."""
    async with target() as worker:
        sampling = {"temperature": 0.0, "ignore_eos": True}
        truth = await plain(worker, sampling=sampling, max_tokens=12)
        worker.runner.passes.clear()

        def drafts(emitted: Sequence[int]) -> list[list[int]]:
            right = truth[len(emitted) : len(emitted) + 3]
            return [[(token_id + turn) % 32 for token_id in right] for turn in (1, 2, 0)]

        assert await in_rounds(worker, drafts, len(truth), sampling=sampling) == truth
        sizes = [len(row.token_ids) for rows in worker.runner.passes for row in rows]
        assert len(sizes) == 3, "four tokens a round"
        assert max(sizes[1:]) == 1 + 9, "the last token and the drafts, no more"


@async_test
async def test_trees_share_what_candidates_share() -> None:
    async with target() as worker:
        candidates = [{"token_ids": [1, 2, 3]}, {"token_ids": [1, 2, 4]}, {"token_ids": [5]}]
        await worker.verify(ids=PROMPT, candidates=candidates)
        ((row,),) = worker.runner.passes
        assert len(row.token_ids) == len(PROMPT) + 5
        assert row.parents is not None


@async_test
async def test_logprobs_are_of_the_unprocessed_logits() -> None:
    async with target() as worker:
        sampling = {"temperature": 0.0, "logit_bias": {"9": 100.0}}
        answer = await worker.verify(ids=PROMPT, candidates=[{"token_ids": [9, 9]}], sampling=sampling, logprobs=2)
        assert answer["token_ids"] == [9, 9, 9]
        for place, entry in enumerate(answer["logprobs"]):
            logits = worker.runner.logits([*PROMPT, *[9] * place])
            logprobs = logits.log_softmax(-1)
            assert entry["logprob"] == pytest.approx(float(logprobs[9]), abs=1e-5)
            assert entry["rank"] == 1 + int((logits > logits[9]).sum())
            best = logprobs.topk(2)
            assert [pair[0] for pair in entry["top"]] == best.indices.tolist()
            assert [pair[1] for pair in entry["top"]] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("strategy", ["threshold", "greedy"])
@async_test
async def test_strategies_that_change_the_text_are_reported_as_lossy(strategy: str) -> None:
    async with target() as worker:
        answer = await worker.verify(
            ids=PROMPT, candidates=[{"token_ids": [1, 2]}], strategy=strategy, sampling={"temperature": 1e-5}
        )
        assert answer["lossless"] is False


@pytest.mark.parametrize(("strategy", "threshold"), [("greedy", 0.1), ("threshold", 0.0), ("threshold", 1.0)])
@async_test
async def test_at_temperature_0_their_text_is_the_targets_own(strategy: str, threshold: float) -> None:
    async with target() as worker:
        cold = {"temperature": 0.0}
        own = await plain(worker, sampling=cold, max_tokens=4)
        other = (own[1] + 1) % 5
        for number, draft in enumerate(([own[0], own[1], own[2]], [own[0], other], [other])):
            answer = await worker.verify(
                ids=PROMPT,
                candidates=[{"token_ids": draft}],
                strategy=strategy,
                acceptance_threshold=threshold,
                sampling=cold,
                session_id=f"{strategy}{number}",
            )
            assert answer["token_ids"] == own[: len(answer["token_ids"])]
            assert answer["lossless"] is True


@async_test
async def test_threshold_accepts_by_probability_alone() -> None:
    async with target() as worker:
        drafts = [{"token_ids": [1, 2]}]
        everything = await worker.verify(ids=PROMPT, candidates=drafts, strategy="threshold", acceptance_threshold=0.0)
        nothing = await worker.verify(
            ids=PROMPT, candidates=drafts, strategy="threshold", acceptance_threshold=1.0, round=1
        )
        assert everything["num_accepted"] == 2
        assert nothing["num_accepted"] == 0


@async_test
async def test_probabilistic_takes_q_and_is_a_function_of_the_seed() -> None:
    async with target() as worker:
        candidate = {
            "token_ids": [1, 2],
            "q": [{"token_ids": [1, 5], "logprobs": [-0.6931471805599453] * 2}, {"token_ids": [2], "logprobs": [0.0]}],
        }
        answers = [
            await worker.verify(ids=PROMPT, candidates=[candidate], strategy="probabilistic", round=number)
            for number in range(2)
        ]
        assert answers[0]["token_ids"] == answers[1]["token_ids"]
        assert answers[0]["lossless"] is True


@async_test
async def test_choices_differ_and_choice_zero_leaves_the_seed_alone() -> None:
    async with target() as worker:
        sampling = {"temperature": 1.0}
        texts = [await plain(worker, sampling=sampling, max_tokens=12, choice_index=index) for index in (0, 0, 1, 2)]
        assert texts[0] == texts[1]
        assert len({tuple(text) for text in texts}) == 3


def decisions_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "Decision" in record.getMessage()]


@async_test
async def test_decisions_are_logged_only_when_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with target() as worker:
        await worker.verify(ids=PROMPT, candidates=[{"token_ids": [1, 2]}])
        assert decisions_in(caplog) == []
        await worker.verify(ids=PROMPT, candidates=[{"token_ids": [1, 2]}], round=1, log_decisions=True)
        assert len(decisions_in(caplog)) == 2
    async with target(verbose=True) as worker:
        await worker.verify(ids=PROMPT, candidates=[{"token_ids": [1]}])
        assert len(decisions_in(caplog)) == 3


@async_test
async def test_the_log_has_the_verdict_and_the_reason_for_every_candidates_tokens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with target() as worker:
        sampling = {"temperature": 0.8, "seed": 4, "ignore_eos": True}
        own = await plain(worker, sampling=sampling, max_tokens=4)
        wrong = (own[1] + 1) % 31
        drafts = [[own[0], wrong, own[2]], own[:2]]
        fields = {"sampling": sampling, "num_prompt_tokens": len(PROMPT), "log_decisions": True}
        candidates = [{"token_ids": draft} for draft in drafts]
        answer = await worker.verify(ids=PROMPT, candidates=candidates, **fields)
        assert (answer["candidate"], answer["num_accepted"]) == (1, 2)
        log = decisions_in(caplog)
        assert len(log) == 5
        for line, (candidate, place, verdict) in zip(
            log,
            [
                ("0:", 0, "accepted=True, reason='accepted', instead=None"),
                ("0:", 1, f'accepted=False, reason="differs from the target\'s own draw", instead={own[1]}'),
                ("0:", 2, "accepted=False, reason='after a rejected token', instead=None"),
                ("1 (kept):", 0, "accepted=True, reason='accepted', instead=None"),
                ("1 (kept):", 1, "accepted=True, reason='accepted', instead=None"),
            ],
            strict=True,
        ):
            assert f"session s round 0 candidate {candidate}" in line
            assert f"position={len(PROMPT) + place}, drafted={drafts[int(candidate[0])][place]}, p=0." in line
            assert f", q=None, own={own[place]}, " in line or place == 2
            assert verdict in line


@async_test
async def test_the_log_calls_nothing_accepted_that_comes_after_a_stop_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with target() as worker:
        sampling = {"temperature": 0.0, "logit_bias": {str(STOP): 100.0}}
        draft = {"token_ids": [STOP, STOP, 5]}
        answer = await worker.verify(ids=PROMPT, candidates=[draft], sampling=sampling, log_decisions=True)
        assert answer["num_accepted"] == 1
        log = decisions_in(caplog)
        assert [line.count("accepted=True") for line in log] == [1, 0, 0]
        assert all("reason='after a stop token', instead=None" in line for line in log[1:])


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
@async_test
async def test_logprobs_of_a_tree_are_the_kept_paths(accepted: int) -> None:
    """The path that wins is the last of three, so its rows are not the first of the pass."""
    async with target() as worker:
        sampling = {"temperature": 0.0, "ignore_eos": True}
        truth = await plain(worker, sampling=sampling, max_tokens=4)
        right = [*truth[:accepted], *[(token_id + 1) % 32 for token_id in truth[accepted:3]]]
        wrong = [[(token_id + turn) % 32 for token_id in truth[:3]] for turn in (2, 3)]
        candidates = [{"token_ids": ids} for ids in (*wrong, right)]
        answer = await worker.verify(ids=PROMPT, candidates=candidates, sampling=sampling, logprobs=1)
        assert answer["token_ids"] == truth[: accepted + 1]
        assert len(answer["logprobs"]) == accepted + 1
        for place, entry in enumerate(answer["logprobs"]):
            logprobs = worker.runner.logits([*PROMPT, *truth[:place]]).log_softmax(-1)
            assert entry["logprob"] == pytest.approx(float(logprobs[truth[place]]), abs=1e-5)
            assert entry["top"][0][0] == truth[place]
            assert entry["rank"] == 1
