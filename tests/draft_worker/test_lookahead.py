"""Lookahead over the wire: what is prepared is what would be drawn, it is there when it fits, and delays nobody."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from draft_worker import lookahead as lookahead_module
from draft_worker.auto import Auto
from draft_worker.fan_out import GuessRates, laid_out, likeliest, worths
from draft_worker.outcomes import BONUS, Ahead, Branch, Guess
from draft_worker.plans import DrawSeconds
from engines.runtime.rows import Row
from testing.fakes.runner import FakeRunner
from testing.patience import PATIENCE
from testing.wire import async_test, pause, request
from testing.worker_apps import STOP, Drafter, blended, drafter, target

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
GREEDY = {"temperature": 0.0, "logit_bias": {str(STOP): -100.0}}
WARM = {"temperature": 0.9, "logit_bias": {str(STOP): -100.0}}


@pytest.fixture(autouse=True)
def there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes are known to take no time, and calls to come half a minute apart, however busy the machine is."""
    monkeypatch.setattr(DrawSeconds, "of", lambda self, rows: 0.0)
    monkeypatch.setattr(lookahead_module, "_smoothed", lambda old, new: 30.0)


async def prepared(worker: Drafter) -> None:
    """Wait until all is prepared that is to be."""
    while await worker.metric("tandem_draft_lookahead_running"):
        await pause()


async def generate(worker: Drafter, judge: Any, sampling: dict[str, Any], tokens: int, **fields: Any) -> Any:
    """(text, sources of drafts, drafts) by rounds of γ = 3."""
    ids, held, sources, drafts = list(PROMPT), 0, [], []
    for number in range(tokens):
        answer = await worker.draft(ids=ids, held=held, round=number, draft_tokens=3, sampling=sampling, **fields)
        await prepared(worker)
        drafted = answer["candidates"][0]
        sources.append(answer["source"])
        drafts.append((tuple(ids), drafted["token_ids"]))
        strategy = "probabilistic" if fields.get("want_q") else "deterministic"
        verdict = await judge.verify(
            ids=ids, session_id=None, candidates=[drafted], sampling=sampling, strategy=strategy
        )
        held = len(ids)
        ids = [*ids, *verdict["token_ids"]]
        if len(ids) >= len(PROMPT) + tokens:
            break
    return ids[: len(PROMPT) + tokens], sources, drafts


@pytest.mark.parametrize("fields", [{}, {"want_q": True}], ids=["deterministic", "probabilistic"])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
@async_test
async def test_the_same_text_from_the_same_drafts_some_of_them_prepared(
    sampling: dict[str, Any], fields: dict[str, Any]
) -> None:
    async with drafter(FakeRunner(logits=blended(0.3))) as worker, target() as judge:
        plain, sources, drafts = await generate(worker, judge, sampling, 16, session_id="plain", **fields)
        assert set(sources) == {"model"}
        ahead, sources, others = await generate(
            worker, judge, sampling, 16, session_id="ahead", lookahead_tokens=3, **fields
        )
        assert ahead == plain
        assert others == drafts, "a hit and a miss send the same tokens"
        assert sources.count("cache") > len(sources) // 3
        assert "model" in sources
        hits = await worker.metric("tandem_draft_lookahead_calls_total")
        assert hits == len(sources) - 1
        used = await worker.metric("tandem_draft_lookahead_tokens_total")
        assert used > 3 * sources.count("cache")


def chain(outcomes: Sequence[tuple[float, Guess]], planned: int, worth: list[float], *rest: Any) -> list[Guess]:
    """In place of `laid_out`: the likeliest token after the whole draft alone."""
    return [replace(guess, tokens=len(worth)) for _, guess in outcomes if guess.place == BONUS][:1]


@pytest.mark.parametrize("fields", [{}, {"want_q": True}], ids=["deterministic", "probabilistic"])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
@async_test
async def test_a_single_outcome_grows_where_the_draft_stands(
    sampling: dict[str, Any], fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with drafter() as worker, target() as judge:
        plain, _, drafts = await generate(worker, judge, sampling, 24, session_id="plain", **fields)
        monkeypatch.setattr(lookahead_module, "laid_out", chain)
        ahead, sources, others = await generate(
            worker, judge, sampling, 24, session_id="ahead", lookahead_tokens=3, **fields
        )
        assert (ahead, others) == (plain, drafts)
        assert sources.count("cache") > len(sources) // 2
        assert not any(row.parents is not None for rows in worker.runner.passes for row in rows)


@pytest.mark.parametrize("kept", [True, False])
@async_test
async def test_a_single_outcome_takes_a_row_a_pass_but_unknown_places_are_looked_at_now_and_then(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookahead_module, "laid_out", chain)
    monkeypatch.setattr(lookahead_module, "_LOOK_ROUND", 2)
    if not kept:
        nothing_is_kept(monkeypatch)
    async with drafter() as worker:
        for number, context in enumerate((PROMPT, [*PROMPT, 7])):
            worker.runner.passes.clear()
            await worker.draft(
                ids=context, session_id=f"s{number}", draft_tokens=3, sampling=GREEDY, lookahead_tokens=3
            )
            await prepared(worker)
            fed = [sum(len(row.token_ids) for row in rows) for rows in worker.runner.passes]
            assert fed[3:] == ([1, 1, 1, 1] if kept or number == 0 else [4, 1, 1, 1])


def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what drawing knows of a draft's places, as where an engine draws it without the host."""
    begin = lookahead_module.Lookahead.begin
    monkeypatch.setattr(lookahead_module.Lookahead, "begin", lambda *args: begin(*args[:5]))


@pytest.mark.parametrize("fields", [{}, {"want_q": True}], ids=["deterministic", "probabilistic"])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
@async_test
async def test_guesses_from_drawing_are_those_of_a_pass_over_the_draft_and_spare_it(
    sampling: dict[str, Any], fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the draft was drawn, was prepared, or was prepared in part."""
    seen: list[Ahead] = []

    def noted(*args: Any, **named: Any) -> Ahead:
        seen.append(Ahead(*args, **named))
        return seen[-1]

    def laid(outcomes: Sequence[tuple[float, Guess]], planned: int, worth: list[float], *rest: Any) -> list[Guess]:
        """As many guesses at each place, whatever has been learned of them."""
        return [Guess(place, rank, 2 if place == BONUS else 3) for place in (BONUS, 0, 1, 2) for rank in range(3)]

    monkeypatch.setattr(lookahead_module, "Ahead", noted)
    monkeypatch.setattr(lookahead_module, "laid_out", laid)

    def told() -> list[Any]:
        found = [
            (one.likely, {(branch.at, *branch.tokens): [top.token_ids for top in branch.q] for branch in one.branches})
            for one in seen
        ]
        seen.clear()
        return found

    async with drafter(FakeRunner(logits=blended(0.3))) as worker, target() as judge:
        asked: dict[str, Any] = {"session_id": "a", "lookahead_tokens": 3, **fields}
        one = await generate(worker, judge, sampling, 16, **asked)
        from_drawing, passes = told(), len(worker.runner.passes)
        assert {"cache", "model"} <= set(one[1])
        nothing_is_kept(monkeypatch)
        other = await generate(worker, judge, sampling, 16, **asked | {"session_id": "b"})
        assert other == one
        assert told() == from_drawing
        assert all(len(likely) == 4 and all(likely) for likely, _ in from_drawing)
        assert passes < len(worker.runner.passes) - passes


@async_test
async def test_a_hit_is_answered_without_a_pass() -> None:
    async with drafter() as worker:
        whole = (await worker.draft(ids=PROMPT, sampling=GREEDY, session_id="w", draft_tokens=5))["candidates"][0]
        await worker.draft(ids=PROMPT, sampling=GREEDY, lookahead_tokens=6)
        await prepared(worker)  # another's call meanwhile would end it
        worker.runner.passes.clear()
        ids = [*PROMPT, *whole["token_ids"]]
        answer = await worker.draft(ids=ids, held=len(PROMPT), round=1, sampling=GREEDY)
        assert (answer["source"], answer["parts"]) == ("cache", [{"source": "cache", "tokens": 4}])
        assert worker.runner.passes == []
        # What was prepared beyond it is not lost: the next call would have had it, had it asked.
        await worker.draft(ids=ids, sampling=GREEDY, session_id="p")
        again = await worker.draft(ids=ids, sampling=GREEDY, session_id="q", draft_tokens=4)
        assert answer["candidates"] == again["candidates"]


@async_test
async def test_what_is_prepared_in_part_is_drawn_on() -> None:
    async with drafter() as worker:
        whole = (await worker.draft(ids=PROMPT, sampling=GREEDY, session_id="w", draft_tokens=11))["candidates"][0]
        first = (await worker.draft(ids=PROMPT, sampling=GREEDY, lookahead_tokens=2))["candidates"][0]["token_ids"]
        await prepared(worker)
        ids = [*PROMPT, *whole["token_ids"][:5]]
        assert first == whole["token_ids"][:4]
        answer = await worker.draft(ids=ids, held=len(PROMPT), round=1, sampling=GREEDY, draft_tokens=6)
        assert answer["parts"] == [{"source": "cache", "tokens": 2}, {"source": "model", "tokens": 4}]
        assert answer["candidates"][0]["token_ids"] == whole["token_ids"][5:]


@pytest.mark.parametrize(("wanted", "sent"), [(0, 2), (2, 2), (4, 4), (8, 6)])
@async_test
async def test_a_draft_that_is_prepared_may_be_longer_than_asked(wanted: int, sent: int) -> None:
    """Six tokens are there."""
    async with drafter() as worker:
        whole = (await worker.draft(ids=PROMPT, sampling=GREEDY, session_id="w", draft_tokens=11))["candidates"][0]
        await worker.draft(ids=PROMPT, sampling=GREEDY, lookahead_tokens=6)
        await prepared(worker)
        asked: dict[str, Any] = {"sampling": GREEDY, "draft_tokens": 2, "prepared_tokens": wanted}
        ids = [*PROMPT, *whole["token_ids"][:5]]
        answer = await worker.draft(ids=ids, held=len(PROMPT), round=1, **asked)
        assert answer["candidates"][0]["token_ids"] == whole["token_ids"][5 : 5 + sent]
        assert answer["planned"] == (sent if wanted else None)
        assert answer["parts"] == [{"source": "cache", "tokens": sent}]
        # One that is not prepared has the length that was asked for.
        answer = await worker.draft(ids=[*ids, 30], held=len(ids), round=2, **asked)
        assert len(answer["candidates"][0]["token_ids"]) == 2
        assert answer["planned"] == (2 if wanted else None)


@async_test
async def test_less_than_was_asked_is_drawn_on_whatever_is_prepared() -> None:
    async with drafter() as worker:
        whole = (await worker.draft(ids=PROMPT, sampling=GREEDY, session_id="w", draft_tokens=9))["candidates"][0]
        await worker.draft(ids=PROMPT, sampling=GREEDY, lookahead_tokens=2)
        await prepared(worker)
        ids = [*PROMPT, *whole["token_ids"][:5]]
        answer = await worker.draft(
            ids=ids, held=len(PROMPT), round=1, sampling=GREEDY, draft_tokens=4, prepared_tokens=8
        )
        assert answer["candidates"][0]["token_ids"] == whole["token_ids"][5:]
        assert answer["planned"] == 4


@pytest.mark.parametrize(
    "other", [{"sampling": WARM}, {"choice_index": 1}, {"num_prompt_tokens": 2}, {"session_id": "other", "held": 0}]
)
@async_test
async def test_another_question_gets_nothing_that_was_prepared(other: dict[str, Any]) -> None:
    async with drafter() as worker:
        whole = (await worker.draft(ids=PROMPT, sampling=GREEDY, session_id="w", draft_tokens=5))["candidates"][0]
        await worker.draft(ids=PROMPT, sampling=GREEDY, lookahead_tokens=4)
        await prepared(worker)
        ids = [*PROMPT, *whole["token_ids"]]
        asked = {"ids": ids, "held": len(PROMPT), "round": 1, "sampling": GREEDY, **other}
        assert (await worker.draft(**asked))["source"] == "model"


@async_test
async def test_a_draft_that_was_not_worth_its_rows_is_looked_ahead_of_too() -> None:
    dear = [1.0 + 30.0 * count for count in range(5)]
    auto: dict[str, Any] = {"draft_model": "auto", "verify_seconds": dear, "draft_tokens": 4, "sampling": GREEDY}
    async with drafter() as worker:
        ids = list(PROMPT)
        for number in range(8):
            answer = await worker.draft(
                ids=ids, held=len(ids) - 1 if number else 0, round=number, lookahead_tokens=4, **auto
            )
            await prepared(worker)
            ids = [*ids, 7]
        assert not any(candidate["token_ids"] for candidate in answer["candidates"])


@async_test
async def test_a_draft_of_lookups_is_looked_ahead_of_too() -> None:
    repeating = [5, 1, 2, 3, 4, 5, 1, 2]
    async with drafter() as worker:
        await worker.draft(ids=repeating, draft_tokens=0)  # the model reads, so that the session has a slot
        answer = await worker.draft(
            ids=repeating, held=8, round=1, draft_model="lookup", draft_tokens=2, lookahead_tokens=3
        )
        assert (answer["source"], answer["candidates"][0]["token_ids"]) == ("lookup", [3, 4])
        await prepared(worker)
        own = (await worker.draft(ids=repeating, session_id="o", draft_tokens=1))["candidates"][0]["token_ids"]
        answer = await worker.draft(ids=[*repeating, *own], held=8, round=2, draft_tokens=3)
        assert answer["source"] == "cache"


@async_test
async def test_auto_counts_on_what_is_prepared() -> None:
    cheap = [1.0 + 0.01 * count for count in range(5)]
    auto: dict[str, Any] = {"draft_model": "auto", "verify_seconds": cheap, "draft_tokens": 4, "sampling": GREEDY}
    ids = [20, 11, 23]
    async with drafter() as worker:
        answer = await worker.draft(ids=ids, lookahead_tokens=8, **auto)
        drafted = answer["candidates"][0]["token_ids"]
        await prepared(worker)
        (own,) = (await worker.draft(ids=[*ids, *drafted], session_id="o", draft_tokens=1, sampling=GREEDY))[
            "candidates"
        ][0]["token_ids"]
        answer = await worker.draft(ids=[*ids, *drafted, own], held=3, round=1, **auto)
        assert answer["source"] == "cache"
        assert answer["planned"] == sum(part["tokens"] for part in answer["parts"])


@pytest.mark.parametrize(("want_q", "counted"), [(False, [2]), (True, [5])])
@async_test
async def test_how_far_drafts_have_grown_decides_nothing_where_q_is_wanted(
    want_q: bool, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It follows from the time of passes, and so from stop tokens whose noise is drawn again: a bias of the text."""
    found: list[int] = []

    def until_third(self: Branch, token_id: int, stops: frozenset[int]) -> None:
        self.tokens.append(token_id)
        self.done = len(self.tokens) == 3

    def costs(draws: DrawSeconds, tokens: int) -> DrawSeconds:
        found.append(tokens)
        return draws

    monkeypatch.setattr(Branch, "add", until_third)
    monkeypatch.setattr("draft_worker.auto.AfterPrepared", costs)
    auto: dict[str, Any] = {
        "draft_model": "auto", "verify_seconds": [1.0] * 5, "draft_tokens": 4, "sampling": GREEDY, "want_q": want_q,
    }  # fmt: skip
    ids = [20, 11, 23]
    async with drafter() as worker:
        drafted = (await worker.draft(ids=ids, lookahead_tokens=8, **auto))["candidates"][0]["token_ids"]
        await prepared(worker)
        (own,) = (await worker.draft(ids=[*ids, *drafted], session_id="o", draft_tokens=1, sampling=GREEDY))[
            "candidates"
        ][0]["token_ids"]
        await worker.draft(ids=[*ids, *drafted, own], held=3, round=1, **auto)
    assert found == counted


@async_test
async def test_what_a_copy_goes_on_with_does_not_decide_what_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """It follows from drafted tokens, which may be discarded: under `probabilistic` that would bias the text."""
    planned = []
    monkeypatch.setattr(
        lookahead_module.Lookahead,
        "begin",
        lambda self, asked, drafted, length, usual, places: planned.append((length, usual)),
    )
    monkeypatch.setattr(
        Auto, "_extend", lambda self, asked, plan, choices, costs, found: replace(found, planned=9, extended=6)
    )
    auto: dict[str, Any] = {"draft_model": "auto", "verify_seconds": [1.0] * 5, "draft_tokens": 4}
    async with drafter() as worker:
        answer = await worker.draft(ids=[20, 11, 23], lookahead_tokens=4, **auto)
    assert answer["planned"] == 9
    assert planned == [(3, 3)]


@async_test
async def test_it_waits_for_every_call_and_ends_with_its_session() -> None:
    runner = FakeRunner(2)
    async with drafter(runner, slots=2) as worker:
        hold, entered = threading.Event(), threading.Event()
        trees: list[Sequence[Row]] = []

        def gate(rows: list[Row]) -> None:
            if any(row.parents is not None for row in rows):
                trees.append(rows)
                entered.set()
                assert hold.wait(PATIENCE)

        runner.gate = gate
        await worker.draft(ids=PROMPT, sampling=GREEDY, lookahead_tokens=8)
        assert await asyncio.to_thread(entered.wait, PATIENCE)
        # Two others come while a pass of it runs: they take the next passes, and one of them its slot.
        others = [
            asyncio.create_task(
                worker.draft(ids=[place, 7, 8], sampling=GREEDY, session_id=f"s{place}", draft_tokens=8)
            )
            for place in (1, 2)
        ]
        while await worker.metric("tandem_draft_num_requests_waiting") < len(others):
            await pause()
        await pause()  # what is submitted in a turn of the event loop is handed to the engine at its end
        hold.set()
        await asyncio.gather(*others)
        assert len(trees) == 1, "no pass of it while others had something to feed, and none once its slot was wanted"
        assert (await worker.client.delete("/v1/sessions/s")).status_code == 204
        seen = len(runner.passes)
        await prepared(worker)
        assert len(runner.passes) == seen


@async_test
async def test_a_session_that_is_deleted_ends_what_it_prepares() -> None:
    runner = FakeRunner(2)
    async with drafter(runner, slots=2) as worker:
        hold, entered = threading.Event(), threading.Event()

        def gate(rows: list[Row]) -> None:
            if any(row.parents is not None for row in rows):
                entered.set()
                assert hold.wait(PATIENCE)

        runner.gate = gate
        await worker.draft(ids=PROMPT, sampling=GREEDY, lookahead_tokens=16)
        assert await asyncio.to_thread(entered.wait, PATIENCE)
        assert (await worker.client.delete("/v1/sessions/s")).status_code == 204
        for _ in range(20):
            await pause()  # what was cancelled hears of it once the event loop has gone round
        passes = len(runner.passes)
        hold.set()
        await prepared(worker)
        assert len(runner.passes) == passes
        assert await worker.metric("tandem_draft_num_requests_running") == 0


@async_test
async def test_a_failing_engine_fails_what_is_prepared_and_nothing_else() -> None:
    runner = FakeRunner(2)
    async with drafter(runner, slots=2) as worker:

        def gate(rows: list[Row]) -> None:
            if any(row.parents is not None for row in rows):
                raise RuntimeError("broken on purpose")

        runner.gate = gate
        first = (await worker.draft(ids=PROMPT, sampling=GREEDY, lookahead_tokens=4))["candidates"][0]["token_ids"]
        await prepared(worker)
        answer = await worker.draft(ids=[*PROMPT, first[0], 30], held=8, round=1, sampling=GREEDY, lookahead_tokens=4)
        assert answer["source"] == "model"
        assert len(answer["candidates"][0]["token_ids"]) == 4


@async_test
async def test_a_worker_that_cannot_refuses_it_by_name() -> None:
    async with drafter(lookup=True) as worker:
        status, body = await worker.post("/v1/draft", request([1, 2], draft_tokens=2, lookahead_tokens=2))
        assert (status, body["error"]["code"], body["error"]["field"]) == (400, "unsupported", "lookahead_tokens")


async def drafted_together(worker: Drafter, texts: Sequence[list[int]], round_: int, held: int) -> list[Any]:
    """The answers of a batch with an item for each text."""
    items = [
        request(
            ids, held=held, draft_tokens=2, session_id=f"s{place}", round=round_, sampling=GREEDY, lookahead_tokens=3
        )
        for place, ids in enumerate(texts)
    ]
    status, body = await worker.post("/v1/draft/batch", {"items": items})
    assert status == 200
    return [item["response"] for item in body["items"]]


@async_test
async def test_a_batch_looks_ahead_for_all_its_items_in_the_same_passes() -> None:
    count = 6
    async with drafter(slots=count + 1) as worker:
        texts = [[place, *PROMPT] for place in range(count)]
        answers = await drafted_together(worker, texts, 0, 0)
        drawn = len(worker.runner.passes)
        await prepared(worker)
        assert len(worker.runner.passes) > drawn
        for rows in worker.runner.passes[drawn:]:
            assert len({row.slot for row in rows}) == count, "all grow together"
        for place, answer in enumerate(answers):
            texts[place] += answer["candidates"][0]["token_ids"]
            own = await worker.draft(ids=texts[place], session_id="o", round=place, draft_tokens=1, sampling=GREEDY)
            texts[place] += own["candidates"][0]["token_ids"]
        answers = await drafted_together(worker, texts, 1, 1 + len(PROMPT))
        assert [answer["parts"] for answer in answers] == [[{"source": "cache", "tokens": 2}]] * count


@async_test
async def test_nothing_is_prepared_before_all_of_a_batch_is_answered() -> None:
    """An item whose draft is there, beside one that has to be drawn."""
    async with drafter(slots=4) as worker:
        texts = [[place, *PROMPT] for place in range(2)]
        answers = await drafted_together(worker, texts, 0, 0)
        await prepared(worker)
        for place, answer in enumerate(answers):
            texts[place] += answer["candidates"][0]["token_ids"]
        own = await worker.draft(ids=texts[0], session_id="o", draft_tokens=1, sampling=GREEDY)
        texts[0] += own["candidates"][0]["token_ids"]
        texts[1] = [*texts[1][:-2], 29, 28, 27]
        worker.runner.passes.clear()
        seen: list[set[int]] = []
        worker.runner.gate = lambda rows: seen.append({row.slot for row in rows})
        first, second = await drafted_together(worker, texts, 1, 1 + len(PROMPT))
        assert (first["source"], second["source"]) == ("cache", "model")
        await prepared(worker)
        assert [len(slots) for slots in seen[:2]] == [1, 1], "the two passes of the one that was drawn"
        assert {len(slots) for slots in seen[2:]} == {2}


@async_test
async def test_nothing_is_prepared_before_others_calls_are_answered() -> None:
    async with drafter(slots=4) as worker:
        whole = await worker.draft(ids=[0, *PROMPT], session_id="w", sampling=GREEDY, draft_tokens=9)
        text = [0, *PROMPT, *whole["candidates"][0]["token_ids"]]
        await drafted_together(worker, [text[:9]], 0, 0)
        await prepared(worker)
        hold, entered = threading.Event(), threading.Event()
        passes: list[set[int]] = []

        def gate(rows: list[Row]) -> None:
            passes.append({row.slot for row in rows})
            entered.set()
            assert hold.wait(PATIENCE)

        worker.runner.gate = gate
        others = [
            asyncio.create_task(worker.draft(ids=[place] * 30, sampling=GREEDY, session_id=f"o{place}"))
            for place in (1, 2)
        ]
        assert await asyncio.to_thread(entered.wait, PATIENCE)
        (there,) = await drafted_together(worker, [text[:12]], 1, 9)
        assert there["source"] == "cache"
        hold.set()
        await asyncio.gather(*others)
        await prepared(worker)
        first = next(number for number, slots in enumerate(passes) if len(slots) == 1)
        assert first > 1
        assert not passes[first] & set().union(*passes[:first]), "its own, once the others are answered"
        assert all(slots == passes[first] for slots in passes[first:])


def test_guesses_go_where_they_are_likeliest() -> None:
    rates = GuessRates()
    surely = [guess for _, guess in likeliest([0.98, 0.96, 0.94], rates, 3)]
    assert surely == [Guess(BONUS, rank) for rank in range(3)]
    geometric = [guess for _, guess in likeliest([0.5, 0.25, 0.125, 0.0625], rates, 6)]
    counts = [sum(guess.place == place for guess in geometric) for place in range(4)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[1] > 0
    never = [guess for _, guess in likeliest([0.0, 0.0], rates, 4)]
    assert all(guess.place == 0 for guess in never)
    assert [guess.place for _, guess in likeliest([], rates, 2)] == [BONUS, BONUS]


def test_rates_of_guesses_are_learned_apart() -> None:
    rates = GuessRates()
    for _ in range(60):
        rates.observe(left=True, rank=1)
        rates.observe(left=False, rank=None)
    assert rates.rates(True)[1] > 0.8 > 0.2 > rates.rates(True)[0]
    assert max(rates.rates(False)) < 0.1


def test_time_goes_where_it_brings_most() -> None:
    outcomes = [(0.5, Guess(BONUS, 0)), (0.2, Guess(0, 0)), (0.1, Guess(2, 0))]

    def tokens(seconds: Callable[[int], float], time: float, most: int = 128) -> list[tuple[int, int]]:
        found = laid_out(outcomes, 4, [seconds(1)] * 4, most, seconds, time, lambda tokens: tokens * seconds(1))
        return [(guess.place, guess.tokens) for guess in found]

    rows_are_free, rows_cost = (lambda rows: 0.01), (lambda rows: 0.004 + 0.006 * rows)
    assert tokens(rows_are_free, math.inf) == [(BONUS, 4), (0, 4), (2, 4)]
    assert tokens(rows_are_free, math.inf, most=9) == [(BONUS, 4), (0, 4), (2, 1)], "saves more than 3, 3, 3"
    assert tokens(rows_are_free, 0.035) == [(BONUS, 2), (0, 2), (2, 2)], "the draft's pass and two more"
    assert tokens(rows_cost, 0.045) == [(BONUS, 3)], "the draft's last token, then three more"
    assert tokens(rows_cost, 0.0) == [(BONUS, 1)], "one at least"
    assert tokens(rows_cost, math.inf) == [(BONUS, 4), (0, 4), (2, 4)], "there is time for all"
    outcomes[1:] = [(0.03, Guess(0, 0)), (0.03, Guess(2, 0))]
    assert tokens(rows_cost, math.inf) == [(BONUS, 4)], "they save little more, and the draft had to be read again"
    outcomes[1:] = [(0.2, Guess(0, 0)), (0.1, Guess(2, 0))]
    more_than_one_cost = lambda rows: 0.02 if rows == 1 else 0.06 + 0.008 * rows  # noqa: E731
    assert tokens(more_than_one_cost, 0.21) == [(BONUS, 4)], "as a small model on a CPU: no straight line"
    rows_cost_little = lambda rows: 0.009 + 0.001 * rows  # noqa: E731
    assert [place for place, _ in tokens(rows_cost_little, 0.1)] == [BONUS, 0, 2]


def test_where_places_are_known_outcomes_grow_in_the_first_pass_but_those_that_follow_the_draft() -> None:
    outcomes = [(0.5, Guess(BONUS, 0)), (0.2, Guess(0, 0)), (0.1, Guess(2, 0))]

    def tokens(time: float, known: bool) -> list[tuple[int, int]]:
        found = laid_out(outcomes, 4, [0.01] * 4, 128, lambda rows: 0.01, time, lambda tokens: 1.0, known)
        return [(guess.place, guess.tokens) for guess in found]

    assert tokens(0.035, known=False) == [(BONUS, 2), (0, 2), (2, 2)]
    assert tokens(0.035, known=True) == [(BONUS, 2), (0, 3), (2, 3)]
    assert tokens(0.015, known=True) == [(0, 1), (2, 1)]
    assert tokens(0.015, known=False) == [(BONUS, 1)], "one at least"


def test_tokens_at_little_cost_do_not_take_the_time_of_the_likeliest_drafts_last_pass() -> None:
    outcomes = [(0.4, Guess(BONUS, 0)), (0.1, Guess(0, 0)), (0.08, Guess(1, 0)), (0.06, Guess(2, 0))]
    seconds = lambda rows: 0.04 + 0.0003 * rows  # noqa: E731
    found = laid_out(outcomes, 4, [0.041] * 4, 128, seconds, 0.218, lambda tokens: tokens * seconds(1), known=True)
    assert [guess.tokens for guess in found] == [4, 4, 4, 3], "not 3, 4, 4, 4"


def test_logits_are_kept_of_the_first_branches_alone() -> None:
    ahead = Ahead([5, 6], [Guess(BONUS, 0, 2), Guess(0, 0, 2), Guess(1, 0, 1)], 8, most_kept=3)
    ahead.likely = [[7], [8], [9]]
    ahead.begin(20, frozenset())
    assert [branch.keeps for branch in ahead.branches] == [True, False, False]
    logits = torch.ones(1, 4)
    for branch in ahead.branches:
        branch.keep(logits)
    logits.zero_()  # the pass's own go on to be written over
    assert [[place if place is None else place.tolist() for place in branch.places] for branch in ahead.branches] == [
        [[[1.0] * 4]], [None], [None],
    ]  # fmt: skip


def test_chains_prepare_as_many_outcomes_as_there_is_time_for_one_after_the_other() -> None:
    outcomes = [(0.5, Guess(BONUS, 0)), (0.1, Guess(0, 0)), (0.06, Guess(BONUS, 1)), (0.05, Guess(2, 0))]

    def told(time: float, known: bool = True, rows: float = 0.0) -> list[tuple[int, int, int]]:
        seconds = lambda count: 0.01 + rows * count  # noqa: E731
        drawing = lambda tokens: 0.002 * tokens  # noqa: E731
        found = laid_out(outcomes, 4, [0.002] * 4, 128, seconds, time, drawing, known, chains=True)
        return [(guess.place, guess.rank, guess.tokens) for guess in found]

    assert told(0.0105) == [(BONUS, 0, 4)]
    assert told(0.019) == [(BONUS, 0, 4), (0, 0, 4)]
    assert told(0.035) == [(BONUS, 0, 4), (0, 0, 4), (BONUS, 1, 4), (2, 0, 4)]
    assert told(0.035, known=False) == [(BONUS, 0, 4)]
    assert told(0.035, rows=0.004) == [(BONUS, 0, 4)], "the draft would have to be read again for less than it brings"


def test_a_whole_draft_for_the_next_outcome_comes_before_a_token_more_for_the_first() -> None:
    outcomes = [(0.4, Guess(BONUS, 0)), (0.2, Guess(0, 0)), (0.15, Guess(2, 0))]
    rows_cost = lambda rows: 0.04 + 0.005 * rows  # noqa: E731

    def tokens(worth: list[float]) -> list[int]:
        return [
            guess.tokens
            for guess in laid_out(outcomes, 3, worth, 128, rows_cost, 0.25, lambda tokens: tokens * rows_cost(1))
        ]

    right = [0.7**place for place in range(1, 7)]
    assert tokens(worths(6, 0.04, 0.0, right, pace=0.1)) == [4], "each is worth a pass"
    assert tokens(worths(2, 0.04, 0.0, right, pace=0.02)) == [2, 2, 2]
    outcomes = [(0.5, Guess(0, 0)), (0.2, Guess(0, 1)), (0.1, Guess(0, 2))]
    worth = worths(2, 0.04, 0.0, [0.5**place for place in range(1, 7)], pace=0.02)
    found = laid_out(outcomes, 1, worth, 128, lambda rows: 0.005 + 0.005 * rows, 0.1, lambda tokens: 0.01 * tokens)
    assert [guess.tokens for guess in found] == [2, 2, 2], "within a tree, too"


def test_what_a_prepared_token_saves() -> None:
    right = [0.8, 0.6, 0.5, 0.3]
    assert worths(2, 0.04, 0.0, right, 0.1) == [0.04, 0.04, 0.04, 0.03]
    assert worths(2, 0.04, 0.02, right, 0.1) == [0.05, 0.05, 0.05, 0.03]
    assert worths(0, 0.04, 0.02, right, 0.1) == pytest.approx([0.08, 0.06, 0.05, 0.03])


@async_test
async def test_no_pass_is_begun_that_would_be_under_way_when_the_next_call_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with drafter() as worker:
        first = (await worker.draft(ids=PROMPT, sampling=GREEDY, lookahead_tokens=4))["candidates"][0]["token_ids"]
        await prepared(worker)
        # From here on a pass is known to take longer than the time between the calls just made and to come.
        monkeypatch.setattr(DrawSeconds, "of", lambda self, rows: 60.0)
        ids = [*PROMPT, first[0], 30]
        worker.runner.passes.clear()
        await worker.draft(ids=ids, held=len(PROMPT), round=1, sampling=GREEDY, lookahead_tokens=4)
        await prepared(worker)
        assert len(worker.runner.passes) == 4, "those that drew the draft"
