"""The workers as one backend: which of them serves a request, and what they can do together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.errors import NoTarget, NotSupported
from testing.fakes.worker import FakeWorker
from testing.patience import until
from tests.server.fleet.harness import collect, expected, fleet_over, request, tokens


def mixed_targets() -> list[FakeWorker]:
    """The first knows no `threshold` and takes many candidates, the second knows it and takes few."""
    first, second = FakeWorker("target"), FakeWorker("target")
    first.strategies = ["deterministic", "probabilistic"]
    second.max_candidates = 2
    return [first, second]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("changes", "able"),
    [
        ({"strategy": "threshold"}, 1),
        ({"strategy": "threshold", "num_candidates": 2}, 1),
        ({"num_candidates": 3}, 0),
        ({"num_candidates": 2}, None),
    ],
)
def test_a_request_goes_to_a_target_that_can_do_what_it_asks(
    turned: bool, changes: dict[str, Any], able: int | None
) -> None:
    async def main() -> None:
        targets = mixed_targets()
        async with fleet_over(targets[::-1] if turned else targets, [FakeWorker("draft")]) as fleet:
            for _ in range(3):
                assert tokens(await collect(fleet, request(**changes))) == expected()
            unable = [] if able is None else [targets[1 - able]]
            assert not any(target.calls for target in unable)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"strategy": "threshold", "num_candidates": 3}, "speculative.strategy"),
        ({"num_candidates": 9}, "speculative.num_candidates"),
    ],
)
def test_what_no_target_can_do_is_refused_by_name(changes: dict[str, Any], param: str) -> None:
    async def main() -> None:
        targets = mixed_targets()
        async with fleet_over(targets, [FakeWorker("draft")]) as fleet:
            with pytest.raises(NotSupported) as refused:
                await collect(fleet, request(**changes))
            assert refused.value.param == param
            assert not any(target.calls for target in targets)

    asyncio.run(main())


@pytest.mark.parametrize("changes", [{"strategy": "threshold"}, {"num_candidates": 9}])
def test_plain_decoding_needs_none_of_it(changes: dict[str, Any]) -> None:
    async def main() -> None:
        async with fleet_over(mixed_targets()[:1], []) as fleet:
            assert tokens(await collect(fleet, request(enabled=False, **changes))) == expected()

    asyncio.run(main())


def test_no_target_takes_over_that_cannot_do_what_was_asked() -> None:
    async def main() -> None:
        targets = mixed_targets()
        targets[1].seconds = 0.002
        async with fleet_over(targets, [FakeWorker("draft")], recovery_timeout_seconds=0.4) as fleet:
            with pytest.raises(NoTarget):  # noqa: PT012
                async for _ in fleet.rounds(request(400, strategy="threshold")):
                    if targets[1].up:
                        await targets[1].kill()
            assert targets[0].calls == []

    asyncio.run(main())


def test_the_served_model_can_do_what_any_of_the_targets_can() -> None:
    async def main() -> None:
        targets = mixed_targets()
        async with fleet_over(targets, []) as fleet:
            served = fleet.model()
            assert set(served.target.capabilities.strategies) == {
                "deterministic",
                "probabilistic",
                "threshold",
                "greedy",
            }
            assert served.target.capabilities.max_candidates == 8
            assert fleet.model() is served
            await targets[1].kill()
            await until(lambda: "down" in fleet.ready()[1])
            assert set(fleet.model().target.capabilities.strategies) == {"deterministic", "probabilistic"}

    asyncio.run(main())


def test_what_drafters_can_do_is_listed_by_the_name_that_picks_them() -> None:
    async def main() -> None:
        draft, other = FakeWorker("draft"), FakeWorker("draft")
        other.sends_q, other.max_candidates, other.id = False, 2, "other-model"
        await other.start()
        async with fleet_over([FakeWorker("target")], [draft], draft_pools={"other": [other.url]}) as fleet:
            told = fleet.model().drafter.capabilities
            assert {name: (able.q, able.max_candidates) for name, able in told.items()} == {
                None: (True, 8),
                "auto": (True, 8),
                "fake-draft": (True, 8),
                "lookup": (True, 8),
                "other": (False, 2),
                "other-model": (False, 2),
            }
            await other.kill()
            await until(lambda: "down" in fleet.ready()[1])
            assert set(fleet.model().drafter.capabilities) == {None, "auto", "fake-draft", "lookup"}

    asyncio.run(main())


def test_streams_spread_over_the_targets() -> None:
    async def main() -> None:
        targets = [FakeWorker("target") for _ in range(3)]
        for target in targets:
            target.seconds = 0.005
        async with fleet_over(targets, [FakeWorker("draft"), FakeWorker("draft")]) as fleet:
            await asyncio.gather(*(collect(fleet, request(20)) for _ in range(9)))
            await until(lambda: [len(target.deleted) for target in targets] == [3, 3, 3])

    asyncio.run(main())


@pytest.mark.parametrize(("target", "said", "used"), [("t", None, 5), ("Llama-3.1-8B-Instruct", None, 3), ("t", 7, 7)])
def test_gamma_is_what_was_said_else_the_targets_pairs(target: str, said: int | None, used: int) -> None:
    async def main() -> None:
        worker = FakeWorker("target")
        worker.id = target
        async with fleet_over([worker], [], draft_tokens=said) as fleet:
            assert fleet.model().drafter.draft_tokens == used

    asyncio.run(main())
