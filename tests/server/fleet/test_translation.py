"""A drafter that can learn the target's vocabulary is sent it once, again after a restart, never after a refusal."""

from __future__ import annotations

import asyncio
from typing import Any

from protocol.messages import DraftRequest
from testing.fakes.worker import FakeWorker, error
from testing.patience import until
from tests.server.fleet.harness import collect, expected, fleet_over, request, tokens


def other_drafter() -> FakeWorker:
    draft = FakeWorker("draft", vocabulary="v2")
    draft.translates = True
    return draft


def asked_of(draft: FakeWorker) -> list[DraftRequest]:
    return [message for path, message in draft.calls if path == "/v1/draft"]


def test_it_learns_once_and_drafts_in_the_targets_ids() -> None:
    async def main() -> None:
        draft = other_drafter()
        async with fleet_over([FakeWorker("target")], [draft]) as fleet:
            await until(lambda: "by shared text (7 tokens are the target's too)" in fleet.ready()[1])
            rounds = await collect(fleet, request())
            assert tokens(rounds) == expected()
            assert sum(round_.num_drafted for round_ in rounds) > 0
            assert {message.vocabulary for message in asked_of(draft)} == {"v1"}
            assert not fleet.model().drafter.capabilities[None].q, "q is not known by shared text"
            await asyncio.sleep(0.3)  # several probes
            assert draft.lessons == 1

    asyncio.run(main())


def test_a_restarted_drafter_is_sent_the_tokenizer_again() -> None:
    async def main() -> None:
        draft = other_drafter()
        async with fleet_over([FakeWorker("target")], [draft]) as fleet:
            await until(lambda: "by shared text" in fleet.ready()[1])
            draft.learned.clear()  # as after an unnoticed restart
            await until(lambda: draft.lessons == 2)
            await until(lambda: "by shared text" in fleet.ready()[1])
            assert sum(round_.num_drafted for round_ in await collect(fleet, request())) > 0

    asyncio.run(main())


def test_ids_that_it_has_forgotten_cost_drafts_alone() -> None:
    async def main() -> None:
        draft = other_drafter()
        async with fleet_over([FakeWorker("target")], [draft], probe_interval_seconds=0.5) as fleet:
            await until(lambda: "by shared text" in fleet.ready()[1])
            draft.always = error(409, "unknown_vocabulary", field="vocabulary")
            assert tokens(await collect(fleet, request())) == expected()

    asyncio.run(main())


def test_a_refusal_is_final_until_something_changes() -> None:
    async def main() -> None:
        draft = other_drafter()
        draft.refuses_to_learn = True
        async with fleet_over([FakeWorker("target")], [draft]) as fleet:
            await until(lambda: "it can't translate: unsupported on purpose" in fleet.ready()[1])
            await asyncio.sleep(0.4)
            assert draft.lessons == 1, "a tokenizer of megabytes is not sent at every look"
            assert tokens(await collect(fleet, request())) == expected()
            draft.refuses_to_learn, draft.id = False, "another"
            await until(lambda: "by shared text" in fleet.ready()[1])

    asyncio.run(main())


def test_a_target_that_is_replaced_by_one_with_other_ids_is_learned_too() -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), other_drafter()
        async with fleet_over([target], [draft]) as fleet:
            await until(lambda: "by shared text" in fleet.ready()[1])
            await target.kill()
            target.vocabulary, target.id = "v3", "other-model"
            await target.start()
            learned: Any = draft.learned
            await until(lambda: learned[-1]["vocabulary"] == "v3")
            await until(lambda: "by shared text" in fleet.ready()[1])
            draft.calls.clear()
            await collect(fleet, request())
            assert {message.vocabulary for message in asked_of(draft)} == {"v3"}

    asyncio.run(main())
