"""What `auto` would draft for what may come: what it then drafts, and what it has learned when that was verified."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from basics.names import AUTO
from draft_worker import lookahead as lookahead_module
from draft_worker.outcomes import BONUS, Guess
from draft_worker.plans import DrawSeconds
from testing.fakes.runner import FakeRunner
from testing.wire import async_test
from testing.worker_apps import STOP, Drafter, blended, drafter

PRICES = [1.0, *(1.02 + 0.02 * count for count in range(8))]
NO_STOP = {"logit_bias": {str(STOP): -100.0}, "temperature": 0.0}
SCOPE = "0123456789abcdef" * 2
LETTERS = 9
"""Few tokens, so that lookup has something to copy."""


@pytest.fixture(autouse=True)
def times_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is: a drawn token takes a hundredth of a pass, and there is time to prepare all."""
    monkeypatch.setattr(DrawSeconds, "of", lambda self, tokens: 0.01 * tokens)
    monkeypatch.setattr(lookahead_module, "_smoothed", lambda old, new: 30.0)

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
    candidate = answer["candidates"][0] if answer["candidates"] else {"token_ids": []}
    return candidate["token_ids"], [(part["source"], part["tokens"]) for part in answer["parts"]], answer["planned"]


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
        for name in ("a", "b", "c", "d"):
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
