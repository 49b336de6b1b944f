"""What `auto` would draft for what may come: what it then drafts, and what it has learned when that was verified."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from basics.names import AUTO
from draft_worker import lookahead as lookahead_module
from draft_worker.outcomes import BONUS, Branch, Guess
from testing.fakes.runner import FakeRunner
from testing.wire import async_test, request
from testing.worker_apps import STOP, Drafter, blended, drafter
from tests.draft_worker.looking_ahead import give_time

PRICES = [1.0, *(1.02 + 0.02 * count for count in range(8))]
NO_STOP = {"logit_bias": {str(STOP): -100.0}, "temperature": 0.0}
SCOPE = "0123456789abcdef" * 2
LETTERS = 9
"""Few tokens, so that lookup has something to copy."""


@pytest.fixture(autouse=True)
def times_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is: a drawn token takes a hundredth of a pass, and there is time to prepare all."""
    give_time(monkeypatch, a_token=0.01)

    def laid(outcomes: Sequence[tuple[float, Guess]], planned: int, worth: list[float], *rest: Any) -> list[Guess]:
        return [Guess(place, rank, len(worth)) for place in (BONUS, *range(planned)) for rank in range(2)]

    monkeypatch.setattr(lookahead_module, "laid_out", laid)


async def told(worker: Drafter, number: int, session: str = "s") -> list[Any]:
    status, body = await worker.post("/v1/prepared", {"session_id": session, "round": number, "wait_ms": 10_000})
    assert status == 200, body
    return [one for one in body["prepared"] if one["whole"]]


def fields(model: bool, **changes: Any) -> dict[str, Any]:
    ahead = {"lookahead_tokens": 8} if model else {}
    return {
        "draft_model": AUTO, "verify_seconds": PRICES, "draft_tokens": 8, "sampling": NO_STOP, "max_tokens": 4_000,
        **ahead, **changes,
    }  # fmt: skip


def drafted(answer: Any) -> tuple[Any, ...]:
    """Its tokens, the q that each was drawn from, and what else is said of it."""
    candidate = answer["candidates"][0] if answer["candidates"] else {"token_ids": [], "q": None}
    parts = [(part["source"], part["tokens"]) for part in answer["parts"]]
    return candidate["token_ids"], candidate["q"], parts, answer["planned"]


def as_told(one: Any) -> tuple[Any, ...]:
    return drafted({**one, "candidates": [one["alternative"]["candidate"]]})


@pytest.mark.parametrize(
    "changes",
    [{}, {"want_q": True, "sampling": {**NO_STOP, "temperature": 0.8}}, {"verify_seconds": None}],
    ids=["greedy", "q", "fixed"],
)
@pytest.mark.parametrize("model", [True, False], ids=["model", "lookup"])
@async_test
async def test_what_is_told_is_what_the_next_call_drafts(model: bool, changes: dict[str, Any]) -> None:
    """Whatever is verified, or not, meanwhile: two workers agree, of which one is told what is verified."""
    rng = Random(4)
    runners = [FakeRunner(logits=blended(0.3)) for _ in range(2)]
    found_of: list[tuple[set[str], bool]] = []
    async with drafter(runners[0], lookup=not model) as plain, drafter(runners[1], lookup=not model) as worker:
        for name in "ab" if model else "abcd":  # what a model prepares takes most of the time
            found_of += await follow(rng, name, plain, worker, fields(model, **changes))
    assert len(found_of) > 30
    assert {foreseen for _, foreseen in found_of} == {True, False}, "all accepted, and not"
    sources = set().union(*(parts for parts, _ in found_of))
    assert {"lookup", "prediction", "history"} <= sources
    assert ("cache" in sources) == model
    assert "model" not in sources


async def follow(rng: Random, name: str, plain: Drafter, worker: Drafter, fixed: dict[str, Any]) -> list[Any]:
    """One session, whose text often is what was foreseen: the sources of drafts that were told, and whether all of the
    draft before was accepted."""
    ids = [rng.randrange(LETTERS) for _ in range(60)]
    predicted = [*ids[30:50], *(rng.randrange(LETTERS) for _ in range(20))] * 2
    asked: dict[str, Any] = {**fixed, "session_id": name, "num_prompt_tokens": 60, "history": SCOPE}
    for each in (plain, worker):
        await each.post("/v1/remember", {"history": SCOPE, "token_ids": [*predicted[7:], *ids]})
    once: dict[str, Any] = {"prediction": {"token_ids": predicted}}
    held, number = 0, 0
    verifying: list[int] | None = None
    expected: Any = None
    used = []
    while len(ids) < 200:
        call = {**asked, **once, "ids": ids, "held": held, "round": number}
        answer, other = await plain.draft(**call), await worker.draft(**call, verifying=verifying)
        assert drafted(answer) == drafted(other)
        if expected is not None:
            assert drafted(answer) == expected[0]
            used.append(({part["source"] for part in answer["parts"]}, expected[1]))
        held, once = len(ids), {}
        found = await told(worker, number, name)
        assert [as_told(one) for one in await told(plain, number, name)] == [as_told(one) for one in found]
        verifying = expected = None
        came = [rng.randrange(LETTERS) for _ in range(1 + number % 3)]
        if found and number % 5:
            one = found[number % len(found)]
            came = one["alternative"]["token_ids"]
            verifying = one["alternative"]["candidate"]["token_ids"]
            expected = as_told(one), len(came) > len(drafted(answer)[0])
        ids, number = [*ids, *came], number + 1
    return used


REPEATED = [*range(1, 21), *range(1, 6)]


@async_test
async def test_what_is_told_leaves_room_for_the_targets_own_token() -> None:
    async with drafter(lookup=True) as worker:
        for left, told_of in ((5, []), (6, [[10]]), (9, [[10, 11, 12]])):
            name = f"s{left}"
            asked = fields(False, draft_tokens=3, verify_seconds=PRICES[:4], max_tokens=left)
            assert drafted(await worker.draft(ids=REPEATED, session_id=name, **asked))[0] == [6, 7, 8]
            found = await told(worker, 0, name)
            assert [one["alternative"]["candidate"]["token_ids"] for one in found] == told_of


@async_test
async def test_nothing_is_told_of_another_round_under_a_grammar_or_where_nothing_is_worth_its_rows() -> None:
    async with drafter(lookup=True) as worker:
        await worker.draft(ids=REPEATED, round=3, **fields(False))
        assert await told(worker, 3)
        assert not await told(worker, 2)
        assert not await told(worker, 4)
        assert not await told(worker, 3, "other")
        dear = [1.0 + 2.0 * count for count in range(9)]
        await worker.draft(ids=[*REPEATED, 6], held=25, round=4, **fields(False, verify_seconds=dear))
        assert not await told(worker, 4)
        grammar = {"type": "regex", "value": ".*", "start": 0}
        await worker.draft(ids=REPEATED, session_id="g", **fields(False, grammar=grammar))
        assert not await told(worker, 0, "g")


@async_test
async def test_a_draft_that_was_not_told_is_chosen_as_ever() -> None:
    async with drafter(lookup=True) as worker:
        first = await worker.draft(ids=REPEATED, **fields(False, draft_tokens=2, verify_seconds=PRICES[:3]))
        assert drafted(first)[0] == [6, 7]
        (one,) = await told(worker, 0)
        came = one["alternative"]["token_ids"]
        assert (came, one["alternative"]["candidate"]["token_ids"]) == ([6, 7, 8], [9, 10])
        again = fields(False, draft_tokens=2, verify_seconds=PRICES[:3], verifying=[9, 11])
        assert drafted(await worker.draft(ids=[*REPEATED, *came], held=25, round=1, **again))[0] == [9, 10]
        again |= {"draft_tokens": 1, "verify_seconds": PRICES[:2], "verifying": [11, 12]}
        assert drafted(await worker.draft(ids=[*REPEATED, *came], held=25, round=2, **again))[0] == [9]


@async_test
async def test_only_what_auto_chose_can_be_said_to_be_verified() -> None:
    async with drafter() as worker:
        status, body = await worker.post("/v1/draft", request([1, 2], draft_tokens=4, verifying=[3]))
        assert (status, body["error"]["field"]) == (400, "verifying")
        status, body = await worker.post("/v1/draft", request([1, 2], verifying=[3, 10**6], **fields(False)))
        assert (status, body["error"]["field"]) == (400, "verifying.1")


@pytest.mark.parametrize("want_q", [False, True])
@async_test
async def test_how_far_drafts_have_grown_decides_nothing_where_q_is_wanted(
    want_q: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what is there is told, as it is worth more than to wait for the rest.

    No G-test guards this: a chooser that tells what is there, among the generations of test_auto_in_flight.py, shifts
    their distribution by less than thousands of them show. So it is held exactly: where q is wanted, nothing is told.
    """

    def until_third(self: Branch, token_id: int, stops: frozenset[int]) -> None:
        self.tokens.append(token_id)
        self.done = len(self.tokens) == 3

    monkeypatch.setattr(Branch, "add", until_third)
    async with drafter() as worker:
        await worker.draft(ids=[20, 11, 23], **fields(True, want_q=want_q, flight_seconds=0.5))
        lengths = {len(one["alternative"]["candidate"]["token_ids"]) for one in await told(worker, 0)}
        assert lengths == (set() if want_q else {2})
