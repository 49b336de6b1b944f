"""Worker and planner together on a virtual clock: the right drafter on every kind of text, and who chooses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cache
from statistics import mean
from typing import Any

import pytest

from basics.names import AUTO
from protocol.messages import Grammar
from testing.fakes.worker import FakeWorker
from testing.patience import until
from tests.server.fleet.harness import collect, expected, fleet_over, request, tokens
from tests.server.rounds.auto_simulator import KINDS, SINGLES, tokens_per_second


@cache
def speed(drafter: str, kind: str, **settings: Any) -> float:
    """The better of short and long drafts for a single drafter; `auto` has its default."""
    depths = (32,) if drafter == AUTO else (8, 32)
    return max(
        mean(asyncio.run(tokens_per_second(drafter, kind, most=most, seed=seed, **settings)) for seed in (1,))
        for most in depths
    )


@pytest.mark.parametrize("kind", KINDS)
def test_auto_is_as_fast_as_the_best_drafter_and_faster_on_mixed_text(kind: str) -> None:
    best = max(speed(single, kind) for single in SINGLES)
    assert speed(AUTO, kind) >= (1.3 if kind == "mixed" else 0.97) * best


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_model_it_is_as_fast_as_the_best_copy(kind: str) -> None:
    best = max(speed(single, kind) for single in ("lookup", "history"))
    assert speed(AUTO, kind, with_model=False) >= (1.2 if kind == "mixed" else 0.97) * best


def test_a_model_that_costs_more_than_it_brings_is_left_alone() -> None:
    settings = {"fixed": 0.02, "per_token": 0.02}
    assert speed(AUTO, "quotation", **settings) >= 0.97 * speed("lookup", "quotation", **settings)
    assert speed(AUTO, "prose", **settings) >= 0.97 / 0.030


@pytest.mark.parametrize("with_model", [True, False])
@pytest.mark.parametrize("kind", ["prose", "calls", "mixed"])
def test_verifying_ahead_costs_nothing_and_hides_the_way(kind: str, with_model: bool) -> None:
    settings = {"network": 0.05, "with_model": with_model}
    gain = speed(AUTO, kind, lookahead="auto", **settings) / speed(AUTO, kind, **settings)
    assert gain >= (1.05 if kind == "calls" else 0.98)


def choosing(worker: FakeWorker) -> FakeWorker:
    own = worker.model

    def model() -> dict[str, Any]:
        plain = own()
        return {**plain, "capabilities": {**plain["capabilities"], "auto": True}}

    worker.model = model  # type: ignore[method-assign]
    return worker


def asked_of(worker: FakeWorker, **changes: Any) -> list[tuple[str | None, bool]]:
    """(draft_model, whether the target's times came) of the drafts of one request."""

    async def main() -> None:
        async with fleet_over([FakeWorker("target")], [worker]) as fleet:
            assert tokens(await collect(fleet, request(**changes))) == expected()

    asyncio.run(main())
    return [(call.draft_model, call.verify_seconds is not None) for _, call in worker.calls if call.draft_tokens]


def test_a_worker_that_can_chooses() -> None:
    for draft_model in (None, AUTO):
        assert set(asked_of(choosing(FakeWorker("draft")), adaptive=True, draft_model=draft_model)) == {(AUTO, True)}


def test_a_worker_that_can_choose_learns_the_targets_times_before_it_reads_a_prompt() -> None:
    for worker, told in ((choosing(FakeWorker("draft")), True), (FakeWorker("draft"), False)):
        asked_of(worker, adaptive=True)
        reads = [call for _, call in worker.calls if not call.draft_tokens]
        assert reads
        assert {(call.draft_model, call.verify_seconds is not None) for call in reads} == {(None, told)}


def test_what_is_known_of_free_text_does_not_count_under_a_grammar() -> None:
    async def main() -> None:
        async with fleet_over([FakeWorker("target")], [choosing(FakeWorker("draft"))]) as fleet:
            free = request(adaptive=True)
            for one in (free, free, replace(free, grammar=Grammar(type="json_object", value="", start=0))):
                assert tokens(await collect(fleet, one)) == expected()
            assert len(fleet._pairs) == 2

    asyncio.run(main())


def test_what_is_learnt_while_the_draft_worker_loads_is_kept() -> None:
    async def main() -> None:
        draft = choosing(FakeWorker("draft"))
        draft.loaded = False
        async with fleet_over([FakeWorker("target")], [draft]) as fleet:
            assert tokens(await collect(fleet, request(adaptive=True))) == expected()
            assert not draft.calls
            draft.loaded = True
            await until(lambda: fleet.ready()[1].count(": ready (") == 2)
            assert tokens(await collect(fleet, request(adaptive=True))) == expected()
            assert any(call.draft_model == AUTO for _, call in draft.calls)
            assert len(fleet._pairs) == 1

    asyncio.run(main())


def test_with_a_fixed_length_the_worker_chooses_only_the_drafter() -> None:
    assert set(asked_of(choosing(FakeWorker("draft")))) == {(AUTO, False)}


def test_a_named_drafter_is_used() -> None:
    assert set(asked_of(choosing(FakeWorker("draft")), draft_model="lookup")) == {("lookup", False)}
    assert set(asked_of(choosing(FakeWorker("draft")), draft_model="fake-draft")) == {(None, False)}
    assert set(asked_of(choosing(FakeWorker("draft")), num_candidates=2)) == {(None, False)}


def test_an_older_worker_is_not_asked_to_choose() -> None:
    for adaptive in (True, False):
        assert set(asked_of(FakeWorker("draft"), adaptive=adaptive)) == {(None, False)}


def test_a_draft_of_several_drafters_is_counted_by_each() -> None:
    async def main() -> list[Any]:
        draft = choosing(FakeWorker("draft"))
        draft.always = lambda answer: {
            **answer,
            "planned": len(answer["candidates"][0]["token_ids"]) if answer["candidates"] else 0,
            "parts": [{"source": "lookup", "tokens": 1}, {"source": "model", "tokens": 2}]
            if answer["candidates"] and len(answer["candidates"][0]["token_ids"]) == 3
            else [],
        }
        async with fleet_over([FakeWorker("target")], [draft]) as fleet:
            return await collect(fleet, replace(request(), max_tokens=40))

    rounds = [round_ for round_ in asyncio.run(main()) if round_.parts]
    assert rounds
    assert rounds[0].by_source(2) == [("lookup", 1, 1), ("model", 2, 1)]
    assert rounds[0].by_source(0) == [("lookup", 1, 0), ("model", 2, 0)]


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_worker_that_has_nothing_is_asked_again_later(adaptive: bool) -> None:
    """Meanwhile the target decodes plainly; a client that fixed γ gets its rounds, and has it asked for each."""

    async def main() -> None:
        target, draft = FakeWorker("target"), choosing(FakeWorker("draft"))
        draft.always = lambda answer: {**answer, "candidates": [], "planned": 0, "source": AUTO}
        async with fleet_over([target], [draft]) as fleet:
            asked = replace(request(adaptive=adaptive), max_tokens=40)
            assert tokens(await collect(fleet, asked)) == expected(40)
        drafts = [call for _, call in draft.calls if call.draft_tokens]
        verified = [path for path, _ in target.calls if path == "/v1/verify"]
        if adaptive:
            assert len(verified) == 1, "the first token, while the prompt is read"
            assert 1 <= len(drafts) < 39
        else:
            assert (len(verified), len(drafts)) == (39, 38), "all but the first token, and the last, which has no draft"

    asyncio.run(main())
