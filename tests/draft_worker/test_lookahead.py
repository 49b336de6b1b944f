"""Lookahead over the wire: what is prepared is what would be drawn, and is there when it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from draft_worker import lookahead as lookahead_module
from draft_worker.auto import Auto
from draft_worker.outcomes import BONUS, Ahead, Branch, Guess
from draft_worker.plans import DrawSeconds
from testing.fakes.runner import FakeRunner
from testing.wire import async_test, request
from testing.worker_apps import STOP, Drafter, blended, drafter, target
from tests.draft_worker.looking_ahead import GREEDY, PROMPT, give_time, prepared

WARM = {"temperature": 0.9, "logit_bias": {str(STOP): -100.0}}


@pytest.fixture(autouse=True)
def there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    give_time(monkeypatch)


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
async def test_a_worker_that_cannot_refuses_it_by_name() -> None:
    async with drafter(lookup=True) as worker:
        status, body = await worker.post("/v1/draft", request([1, 2], draft_tokens=2, lookahead_tokens=2))
        assert (status, body["error"]["code"], body["error"]["field"]) == (400, "unsupported", "lookahead_tokens")


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
