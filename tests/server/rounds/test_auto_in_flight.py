"""Verifications sent ahead of drafts that the draft worker chose: text, figures, and what each side is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from basics.names import AUTO
from protocol.messages import DraftRequest, VerifyRequest
from server.rounds.adaptive.planner import AdaptivePlanner
from server.rounds.adaptive.round import RoundOutcome, Times
from testing.fakes.worker import FakeWorker, error
from testing.wire import pause
from tests.server.fleet.harness import collect, counted, expected, fleet_over, request, set_to, tokens

SECONDS = 0.02


def workers(wrong: float = 0.0, model: bool = True, **changes: Any) -> tuple[FakeWorker, FakeWorker]:
    """`model`: one that looks ahead, too."""
    target, draft = FakeWorker("target"), FakeWorker("draft", wrong=wrong)
    target.ahead, draft.ahead = True, model
    draft.chooses = draft.chooses_ahead = True
    target.seconds = SECONDS
    for name, value in changes.items():
        setattr(target, name, value)
    return target, draft


def followed(target: FakeWorker) -> list[VerifyRequest]:
    return [call for _, call in target.calls if isinstance(call, VerifyRequest) and call.follows is not None]


def drafts(draft: FakeWorker) -> list[DraftRequest]:
    return [call for _, call in draft.calls if call.draft_tokens]


def used(fleet: Any, outcome: str = "used") -> float:
    return float(fleet._metrics.verifications_ahead.labels(outcome)._value.get())


pytestmark = pytest.mark.usefixtures("far_away")


@pytest.fixture(autouse=True)
def drafts_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if they did, however fast or busy the machine is."""
    monkeypatch.setattr("server.rounds.adaptive.pair.Pace.a_token", lambda self: 0.5)
    monkeypatch.setattr("server.rounds.adaptive.pair.PairState.earn", lambda self, tokens: None)


@pytest.mark.parametrize("model", [True, False], ids=["model", "lookup"])
@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("adaptive", [False, True])
def test_text_is_the_targets_and_figures_are_those_of_the_drafters(wrong: float, adaptive: bool, model: bool) -> None:
    async def main() -> None:
        target, draft = workers(wrong, model)
        async with fleet_over([target], [draft], lookahead="on") as fleet:
            rounds = await collect(fleet, request(90, adaptive=adaptive))
            assert tokens(rounds) == expected(90)
            assert {call.draft_model for call in drafts(draft)} == {AUTO}
            verifying = [call for call in drafts(draft) if call.verifying is not None]
            told = [tuple(one.candidate.token_ids) for call in followed(target) for one in call.alternatives]
            assert {tuple(call.verifying or ()) for call in verifying} <= set(told)
            assert all(len(call.verifying or ()) <= call.draft_tokens for call in verifying)
            assert all((call.verify_seconds is None) != adaptive for call in drafts(draft))
            if wrong == 0.0 and (model or adaptive):
                assert used(fleet) > 3
                assert len(verifying) >= used(fleet) - 1
                mixed = [round_ for round_ in rounds if len(round_.parts) > 1]
                assert len(mixed) == used(fleet)
                assert all(round_.parts == (("lookup", 1), ("model", round_.num_drafted - 1)) for round_ in mixed)
                assert {round_.source for round_ in mixed} == {"lookup"}
            assert [call.round for _, call in target.calls] == sorted({call.round for _, call in target.calls})

    asyncio.run(main())


def made_of(made: dict[str, int], answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, drafts of three tokens that come from these sources; unless it has none as long as that."""
    parts = [{"source": source, "tokens": tokens} for source, tokens in made.items()]
    drafts = [
        {key: value[:3] if isinstance(value, list) else value for key, value in drafted.items()}
        for drafted in answer["candidates"]
        if len(drafted["token_ids"]) >= 3
    ]
    return {**answer, "candidates": drafts, "planned": 3, "parts": parts} if drafts else answer


@pytest.mark.parametrize("made", [{"lookup": 3}, {"lookup": 1, "model": 2}, {"model": 3}, {"cache": 3}])
def test_the_planner_is_told_whether_a_model_drew_of_the_draft(
    made: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    own = AdaptivePlanner.observe

    def observe(self: AdaptivePlanner, outcome: RoundOutcome, times: Times) -> None:
        seen.append(outcome.drawn)
        own(self, outcome, times)

    async def main() -> None:
        target, draft = workers()
        draft.always = lambda answer: made_of(made, answer)
        async with fleet_over([target], [draft]) as fleet:
            await collect(fleet, request(60, adaptive=True))

    monkeypatch.setattr(AdaptivePlanner, "observe", observe)
    asyncio.run(main())
    assert seen.count("lookup" not in made or "model" in made) > 3


@pytest.mark.parametrize(
    ("made", "outcome"),
    [
        ({"cache": 3}, "hit"),
        ({"lookup": 1, "cache": 2}, "part"),
        ({"lookup": 1, "model": 2}, "miss"),
        ({"model": 3}, "miss"),
        ({"lookup": 3}, "copy"),
    ],
)
def test_drafts_after_lookahead_are_counted_by_what_of_them_was_there(made: dict[str, int], outcome: str) -> None:
    async def main() -> None:
        target, draft = workers()
        draft.always = lambda answer: made_of(made, answer)
        async with fleet_over([target], [draft], lookahead="on", verifications_in_flight=1) as fleet:
            await collect(fleet, request(60, adaptive=True))
            count = {
                name: fleet._metrics.lookahead_rounds.labels(name)._value.get()
                for name in ("hit", "part", "miss", "copy")
            }
            assert count[outcome] > 3
            # All but drafts that are shorter, at the end of the answer.
            assert sum(count.values()) - count[outcome] <= 1

    asyncio.run(main())


@pytest.mark.parametrize("max_tokens", range(4, 14))
def test_max_tokens_is_exact(max_tokens: int) -> None:
    async def main() -> None:
        target, draft = workers()
        async with fleet_over([target], [draft], lookahead="on") as fleet:
            rounds = await collect(fleet, request(max_tokens, adaptive=True))
            assert tokens(rounds) == expected(max_tokens)

    asyncio.run(main())


@pytest.mark.parametrize("old", ["target", "draft", "off"])
def test_a_worker_that_does_not_know_it_is_not_asked(old: str) -> None:
    async def main() -> None:
        target, draft = workers()
        draft.chooses_ahead = old != "draft"
        target.ahead = old != "target"
        async with fleet_over([target], [draft], lookahead="off" if old == "off" else "on") as fleet:
            assert tokens(await collect(fleet, request(60, adaptive=True))) == expected(60)
            assert not followed(target)
            assert drafts(draft)
            assert all(call.verifying is None for call in drafts(draft))
            assert not draft.told

    asyncio.run(main())


def test_lookup_alone_is_never_asked_to_look_ahead() -> None:
    async def main() -> None:
        target, draft = workers(model=False)
        async with fleet_over([target], [draft], lookahead="auto") as fleet:
            assert tokens(await collect(fleet, request(60, adaptive=True))) == expected(60)
            assert used(fleet) > 3
            assert not any(call.lookahead_tokens for call in drafts(draft))

    asyncio.run(main())


@pytest.mark.parametrize("fault", [{"parts": []}, {"planned": 1}, {"parts": [{"source": "lookup", "tokens": 99}]}])
def test_what_is_told_is_checked(fault: dict[str, Any]) -> None:
    async def main() -> None:
        target, draft = workers()
        draft.tells = lambda one: {**one, **fault}
        async with fleet_over([target], [draft], lookahead="on") as fleet:
            assert tokens(await collect(fleet, request(60, adaptive=True))) == expected(60)
            assert draft.told
            assert not followed(target)

    asyncio.run(main())


@pytest.mark.parametrize("fault", [error(409, "context_mismatch"), error(503, "engine_failure"), set_to(round=99)])
def test_a_draft_worker_that_fails_when_it_is_told_costs_no_text(fault: Any) -> None:
    async def main() -> None:
        target, draft = workers()
        async with fleet_over([target], [draft], lookahead="on") as fleet:
            found = []
            async for round_ in fleet.rounds(request(90, adaptive=True)):
                found.append(round_)
                if len(found) in (6, 7, 12):
                    draft.faults.append(fault)
            assert tokens(found) == expected(90)
            assert counted(fleet, "tandem_verifications_ahead_total") > 1

    asyncio.run(main())


def test_a_flight_that_fails_is_an_ordinary_round_with_the_draft_that_was_told() -> None:
    async def main() -> None:
        target, draft = workers()

        async def never(asked: VerifyRequest) -> Any:
            while target.answered.get(asked.session_id or "", -1) < (asked.follows or 0):
                await pause()
            raise error(409, "not_followed")

        target.follow = never  # type: ignore[method-assign]
        async with fleet_over([target], [draft], lookahead="on") as fleet:
            rounds = await collect(fleet, request(60, adaptive=True))
            assert tokens(rounds) == expected(60)
            assert used(fleet, "discarded") > 1
            assert any(call.verifying for call in drafts(draft))

    asyncio.run(main())
