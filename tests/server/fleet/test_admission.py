"""Which workers may be used: those that are up, and fit the targets' model and vocabulary."""

from __future__ import annotations

import asyncio

import pytest

from server.errors import NoModelYet, NoTarget
from testing.fakes.worker import FakeWorker
from testing.patience import until
from tests.server.fleet.harness import collect, expected, fleet_over, request, tokens


def test_a_drafter_with_another_vocabulary_is_switched_off_and_says_what_differs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        draft = FakeWorker("draft", vocabulary="v2")
        draft.tokens[17] = "foo"
        async with fleet_over([FakeWorker("target")], [draft]) as fleet:
            ready, detail = fleet.ready()
            assert ready
            assert "id 17: target 't17', draft 'foo'" in detail
            assert "id 17: target 't17', draft 'foo'" in caplog.text
            assert fleet.model().drafter.capabilities == {}
            rounds = await collect(fleet, request())
            assert tokens(rounds) == expected()
            assert sum(r.num_drafted for r in rounds) == 0
            assert draft.calls == []
            samples = [s for c in fleet.collectors() for f in c.collect() for s in f.samples if "mismatch" in s.name]
            assert {sample.labels["role"]: sample.value for sample in samples} == {"target": 0.0, "draft": 1.0}

    asyncio.run(main())


def test_a_drafter_that_comes_back_with_the_right_vocabulary_is_used() -> None:
    async def main() -> None:
        draft = FakeWorker("draft", vocabulary="v2")
        async with fleet_over([FakeWorker("target")], [draft]) as fleet:
            assert "refused" in fleet.ready()[1]
            await draft.kill()
            draft.vocabulary = "v1"
            await draft.start()
            await until(lambda: "refused" not in fleet.ready()[1] and "down" not in fleet.ready()[1])
            assert sum(r.num_drafted for r in await collect(fleet, request())) > 0

    asyncio.run(main())


@pytest.mark.parametrize("vocabulary", [None, "v1"])
def test_a_drafter_without_a_vocabulary_of_its_own_fits_any(vocabulary: str | None) -> None:
    async def main() -> None:
        async with fleet_over([FakeWorker("target")], [FakeWorker("draft", vocabulary=vocabulary)]) as fleet:
            assert sum(r.num_drafted for r in await collect(fleet, request())) > 0

    asyncio.run(main())


def test_drafters_are_judged_again_when_the_targets_model_changes() -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        async with fleet_over([target], [draft]) as fleet:
            served = fleet.model()
            assert fleet.model() is served
            await target.kill()
            target.vocabulary, target.id = "v2", "other-model"
            await target.start()
            await until(lambda: fleet.model().names == ("other-model",))
            await until(lambda: "refused" in fleet.ready()[1])
            assert tokens(await collect(fleet, request())) == expected()

    asyncio.run(main())


def test_a_second_target_must_serve_the_same_model() -> None:
    async def main() -> None:
        for change in ({"id": "another"}, {"vocabulary": "v2"}):
            targets = [FakeWorker("target"), FakeWorker("target")]
            vars(targets[1]).update(change)
            async with fleet_over(targets, []) as fleet:
                ready, detail = fleet.ready()
                assert ready
                assert detail.count("refused") == 1

    asyncio.run(main())


def test_a_draft_worker_given_as_a_target_is_refused() -> None:
    async def main() -> None:
        async with fleet_over([FakeWorker("draft")], []) as fleet:
            assert not fleet.ready()[0]
            assert "is a draft worker, configured as a target worker" in fleet.ready()[1]
            with pytest.raises(NoModelYet, match=r"no target worker has been reached yet$"):
                fleet.model()
            with pytest.raises(NoTarget):
                await collect(fleet, request())

    asyncio.run(main())


def test_it_starts_without_any_worker_and_takes_them_as_they_come() -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        async with fleet_over([target], [draft]) as fleet:
            await target.kill()
            await draft.kill()
            await until(lambda: fleet.ready()[1].count("down") == 2)
            await draft.start()
            await target.start()
            await until(lambda: fleet.ready()[1].count("ready (") == 2)
            assert sum(r.num_drafted for r in await collect(fleet, request())) > 0

    asyncio.run(main())


def test_a_worker_that_is_loading_is_waited_for() -> None:
    async def main() -> None:
        target = FakeWorker("target")
        target.loaded = False
        async with fleet_over([target], []) as fleet:
            assert "the model is being loaded" in fleet.ready()[1]
            target.loaded = True
            await until(lambda: fleet.ready()[0])
            assert tokens(await collect(fleet, request())) == expected()

    asyncio.run(main())


def test_workers_are_looked_at_often_as_long_as_nothing_is_served() -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        async with fleet_over([target], [draft], probe_interval_seconds=2.0) as fleet:
            pause = fleet._admission.pause
            target_there, draft_there = fleet.workers
            assert (pause(target_there), pause(draft_there)) == (2.0, 2.0)
            draft_there.missed("for a try")
            assert pause(draft_there) == 0.5
            target_there.missed("for a try")
            assert pause(target_there) == pause(draft_there) < 0.2

    asyncio.run(main())
