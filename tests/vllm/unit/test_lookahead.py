"""Lookahead for vLLM's steps: what is asked of which draft worker, and that the faster way is found."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from engines.vllm.proposer import proposer as proposer_module
from engines.vllm.proposer.lookahead import Lookahead, LookaheadChoice, Way
from protocol.messages import DraftBatchRequest
from testing.fakes.batch_drafter import INFO, BatchDrafter, good
from testing.fakes.vllm_engine import Engine
from tests.vllm.unit.test_proposer import is_plain, ready, until

GAMMA = 4


@pytest.fixture
def worker() -> Iterator[BatchDrafter]:
    fake = BatchDrafter()
    able(fake, lookahead=True, prepared_tokens=True)
    yield fake
    fake.close()


def able(fake: BatchDrafter, **capabilities: bool) -> None:
    fake.info = INFO | {"capabilities": capabilities | {"strategies": []}}


def asked(fake: BatchDrafter) -> set[tuple[int, int, int]]:
    """(draft_tokens, lookahead_tokens, prepared_tokens) of the questions for drafts, but near the context's end."""
    items = [item for batch in fake.drafts() for item in batch.items if item.max_tokens > 2 * GAMMA]
    return {(item.draft_tokens, item.lookahead_tokens, item.prepared_tokens) for item in items}


def test_every_question_for_drafts_asks_for_the_next_ones_too(worker: BatchDrafter) -> None:
    able(worker, lookahead=True)
    engine = Engine(ready(worker.url, GAMMA, lookahead="on"), [5, 6, 7], [3 + place % 7 for place in range(90)])
    engine.read()
    until(engine.has_read)
    for _ in range(4):
        engine.step()
    assert asked(worker) == {(GAMMA, GAMMA, 0)}
    read = [batch for batch in worker.batches if batch not in worker.drafts()]
    assert [item.lookahead_tokens for batch in read for item in batch.items] == [0]
    assert is_plain(engine)


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_one_token_is_drawn_of_what_is_not_there_where_the_worker_knows_that(worker: BatchDrafter, mode: str) -> None:
    engine = Engine(ready(worker.url, GAMMA, lookahead=mode), [5, 6, 7])
    for _ in range(60):
        engine.step()
    plain = {(GAMMA, 0, 0)} if mode == "auto" else set()
    assert asked(worker) == {(GAMMA, GAMMA, 0), (1, GAMMA, GAMMA)} | plain


@pytest.mark.parametrize(
    ("options", "capabilities"),
    [
        ({}, {"lookahead": True}),
        ({"lookahead": "on"}, {"lookahead": False}),
        ({"lookahead": "on"}, {}),
        ({"lookahead": "on", "draft_model": "lookup"}, {"lookahead": True}),
    ],
)
def test_nothing_is_said_of_it_where_it_is_off_or_not_to_be_had(
    worker: BatchDrafter, options: dict[str, object], capabilities: dict[str, bool]
) -> None:
    able(worker, **capabilities)
    engine = Engine(ready(worker.url, GAMMA, **options), [5, 6, 7])
    for _ in range(20):
        engine.step()
    assert asked(worker) == {(GAMMA, 0, 0)}


@pytest.mark.parametrize("pays", [True, False])
def test_auto_keeps_what_brings_more_tokens_a_second(
    worker: BatchDrafter, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def drafting(batch: DraftBatchRequest) -> bytes:
        nonlocal now
        looks = batch.items[0].lookahead_tokens > 0
        now += 0.001 if looks == pays else 0.02
        return good(batch)

    monkeypatch.setattr(proposer_module, "time", SimpleNamespace(perf_counter=lambda: now, monotonic=time.monotonic))
    worker.behaviour = drafting
    engine = Engine(ready(worker.url, GAMMA, lookahead="auto"), [5, 6, 7], [8, 9])
    for _ in range(100):
        engine.step()
        now += 0.02
    worker.batches.clear()
    for _ in range(40):
        engine.step()
        now += 0.02
    looked = sum(item.lookahead_tokens > 0 for batch in worker.drafts() for item in batch.items)
    assert looked >= 60 if pays else looked <= 20, "of 80"


def steps(
    choice: LookaheadChoice, count: int, seconds: Callable[[Way, int], float], seed: int = 1
) -> tuple[float, dict[Way, int]]:
    """Tokens a second of so many steps of four rows, and the steps of each way. What is there is there for 6 of 10."""
    chooser = random.Random(seed)
    total, tokens = 0.0, 0
    ways: dict[Way, int] = {"off": 0, "ahead": 0, "there": 0}
    for _ in range(count):
        way = choice.way
        there = [chooser.random() < 0.6 for _ in range(4)]
        drafted = [GAMMA if way != "there" or is_there else 1 for is_there in there]
        drawn = 0 if way == "ahead" and all(there) else 1 if way == "there" else GAMMA
        emitted = []
        for length in drafted:
            right = 0
            while right < length and chooser.random() < 0.75:
                right += 1
            emitted.append(right + 1)
        took = seconds(way, drawn)
        choice.observe(drafted, emitted, took)
        total, tokens = total + took, tokens + sum(emitted)
        ways[way] += 1
    return tokens / total, ways


@pytest.mark.parametrize(
    ("best", "draw", "beside"),
    [("there", 0.03, 0.0), ("off", 0.001, 0.004), ("off", 0.03, 0.2), ("ahead", 0.002, 0.0)],
    ids=["drafts are slow", "drafts are fast", "one device", "a little"],
)
def test_the_best_way_is_found_on_a_virtual_clock(best: Way, draw: float, beside: float) -> None:
    """A pass of the target takes 30 ms, one of the draft `draw`, and lookahead costs the target `beside`."""

    def seconds(way: Way, drawn: int) -> float:
        return 0.03 + draw * drawn + (beside if way != "off" else 0.0)

    always = {
        way: steps(LookaheadChoice([way]), 4000, seconds)[0]  # of one way alone there is nothing to choose
        for way in ("off", "ahead", "there")
    }
    found, ways = steps(LookaheadChoice(["off", "ahead", "there"]), 4000, seconds)
    assert max(always, key=lambda way: always[way]) == best
    assert ways[best] > 2000
    assert found > 0.97 * always[best]


def test_the_first_step_of_a_block_does_not_count() -> None:
    """Its drafts were drawn, as nothing had been prepared for it."""
    choice, before = LookaheadChoice(["off", "ahead"]), "off"
    for _ in range(60):
        way = choice.way
        choice.observe([GAMMA], [3], 0.3 if way != before else 0.02 if way == "ahead" else 0.03)
        before = way
    assert choice._preferred == "ahead"


def test_a_draft_that_was_there_counts_as_what_such_drafts_bring() -> None:
    """It is one whose text was foreseen, and so of the better ones."""
    choice = LookaheadChoice(["off", "there"])
    for _ in range(60):
        choice.observe([GAMMA], [5 if choice.way == "there" else 3], 0.03)
    assert choice._preferred == "there"


def test_batches_of_different_sizes_are_judged_apart() -> None:
    lookahead = Lookahead("auto")
    one, eight = lookahead.choice(1, True, False), lookahead.choice(8, True, False)
    assert one is not eight
    assert lookahead.choice(9, True, False) is eight
    assert lookahead.choice(1, True, True)._ways == ["off", "ahead", "there"]
    assert lookahead.choice(8, True, True)._ways == ["off", "there"]
    for choice, kind in ((one, "ahead"), (eight, "off")):
        for _ in range(200):
            choice.observe([GAMMA], [3], 0.02 if choice.way == kind else 0.05)
    assert (one._preferred, eight._preferred) == ("ahead", "off")
