"""Workers that come, go, change, and must not be used; https and the token; what the gateway says of itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from server.errors import NoModelYet, NoTarget, NotSupported
from testing.fakes.worker import FakeWorker, self_signed
from tests.server.fleet.harness import PLAIN, collect, expected, fleet_over, request, tokens, until


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


def test_targets_replaced_by_another_model_make_the_drafters_be_judged_again() -> None:
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


def test_what_drafters_can_do_is_told_by_the_name_that_picks_them() -> None:
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


def test_streams_spread_over_the_targets() -> None:
    async def main() -> None:
        targets = [FakeWorker("target") for _ in range(3)]
        for target in targets:
            target.seconds = 0.005
        async with fleet_over(targets, [FakeWorker("draft"), FakeWorker("draft")]) as fleet:
            await asyncio.gather(*(collect(fleet, request(20)) for _ in range(9)))
            await until(lambda: [len(target.deleted) for target in targets] == [3, 3, 3])

    asyncio.run(main())


def test_https_with_a_ca_and_a_token(tmp_path: Path) -> None:
    key, certificate = self_signed(tmp_path)

    async def main() -> None:
        workers = [FakeWorker("target", token="secret"), FakeWorker("draft", token="secret")]
        for worker in workers:
            worker.tls = {"ssl_keyfile": key, "ssl_certfile": certificate}
        secret, ca = SecretStr("secret"), Path(certificate)
        async with fleet_over(workers[:1], workers[1:], worker_token=secret, worker_ca_file=ca) as fleet:
            rounds = await collect(fleet, request())
            assert tokens(rounds) == expected()
            assert sum(r.num_drafted for r in rounds) > 0
            assert tokens(await collect(fleet, replace(request(), speculation=PLAIN))) == expected()

    asyncio.run(main())


@pytest.mark.parametrize(("token", "with_ca", "reason"), [("wrong", True, "token"), ("secret", False, "ertificate")])
def test_a_wrong_token_or_an_unknown_certificate_is_told(
    tmp_path: Path, token: str, with_ca: bool, reason: str
) -> None:
    key, certificate = self_signed(tmp_path)

    async def main() -> None:
        target = FakeWorker("target", token="secret")
        target.tls = {"ssl_keyfile": key, "ssl_certfile": certificate}
        ca = Path(certificate) if with_ca else None
        async with fleet_over([target], [], worker_token=SecretStr(token), worker_ca_file=ca) as fleet:
            assert not fleet.ready()[0]
            assert reason in fleet.ready()[1]
            assert target.calls == []

    asyncio.run(main())


@pytest.mark.parametrize(("target", "said", "used"), [("t", None, 5), ("Llama-3.1-8B-Instruct", None, 3), ("t", 7, 7)])
def test_gamma_is_what_was_said_else_the_targets_pairs(target: str, said: int | None, used: int) -> None:
    async def main() -> None:
        worker = FakeWorker("target")
        worker.id = target
        async with fleet_over([worker], [], draft_tokens=said) as fleet:
            assert fleet.model().drafter.draft_tokens == used

    asyncio.run(main())
