"""Each fault of a target in mid-request: the text is the same, failures are counted, nothing hangs or stays behind."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from protocol.errors import BadRequest
from server.errors import NoTarget, Overloaded
from server.fleet.failures import WorkerUnreachable
from testing.fakes.worker import Answer, Cut, FakeWorker, error
from testing.patience import PATIENCE, until
from tests.server.fleet.harness import PLAIN, collect, expected, fleet_over, hang, request, set_to, tokens

PLAINLY = "^no target worker (can go on|is ready)$"
"""What a client receives: neither a worker's address nor an exception's text."""


LIES_OF_TARGETS = {
    "wrong accepted tokens": set_to(num_accepted=2, token_ids=[7, 7, 7], acceptance_mask=[True, True, False]),
    "more accepted than drafted": set_to(num_accepted=9),
    "no tokens": set_to(token_ids=[]),
    "too many tokens": set_to(token_ids=[1] * 100),
    "ids outside the vocabulary": set_to(token_ids=[50]),
    "a candidate not sent": set_to(candidate=5),
    "another session": set_to(session_id="other"),
    "another round": set_to(round=99),
    "stops too early": set_to(stop_reason="length"),
    "stops at another token": set_to(stop_reason="stop_token", stop_token_id=48, token_ids=[3], num_accepted=0),
    "infinite time": lambda answer: json.dumps(answer).replace('"total_ms": 0.0', '"total_ms": Infinity').encode(),
    "html": lambda answer: b"<html>",
    "ten megabytes": lambda answer: b'{"token_ids": [' + b"1," * 5_000_000 + b"1]}",
    "cut in mid-body": Cut(),
    "500": error(500, "oops"),
    "503": error(503, "engine_failure"),
    "429": error(429, "queue_full", {"retry-after": "0.05"}),
    "session evicted": error(409, "context_mismatch"),
    "stale round": error(409, "stale_round"),
}


@pytest.mark.parametrize("fault", LIES_OF_TARGETS.values(), ids=LIES_OF_TARGETS)
def test_a_target_that_fails_once_is_asked_again(fault: Any) -> None:
    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], [FakeWorker("draft")]) as fleet:
            for at in (0, 3):
                target.faults.extend([None] * at + [fault])
                assert tokens(await collect(fleet, request(20))) == expected(20)
                assert not target.faults

    asyncio.run(main())


PLAIN_FAULTS = {
    name: LIES_OF_TARGETS[name]
    for name in ("ids outside the vocabulary", "no tokens", "html", "ten megabytes", "cut in mid-body", "500", "429")
}


@pytest.mark.parametrize("fault", PLAIN_FAULTS.values(), ids=PLAIN_FAULTS)
def test_plain_decoding_goes_on_after_a_fault(fault: Any) -> None:
    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], []) as fleet:
            target.faults.append(fault)
            assert tokens(await collect(fleet, replace(request(20), speculation=PLAIN))) == expected(20)

    asyncio.run(main())


def test_a_stream_that_breaks_in_the_middle_is_taken_up_where_it_broke() -> None:
    async def main() -> None:
        target = FakeWorker("target")
        seen = 0

        def break_at_seven(answer: Answer) -> Answer | bytes:
            nonlocal seen
            seen += 1
            return b"nonsense" if seen == 7 else answer

        target.faults.append(break_at_seven)
        async with fleet_over([target], []) as fleet:
            assert tokens(await collect(fleet, replace(request(20), speculation=PLAIN))) == expected(20)
            assert target.calls[1][1].max_tokens == 14

    asyncio.run(main())


@pytest.mark.parametrize("speculative", [False, True])
def test_a_target_killed_and_restarted_in_mid_stream(speculative: bool) -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        target.seconds = 0.002
        async with fleet_over([target], [draft]) as fleet:
            asked = request(120) if speculative else replace(request(120), speculation=PLAIN)
            got: list[int] = []
            restart: asyncio.Task[None] | None = None

            async def restart_it() -> None:
                await target.kill()
                await asyncio.sleep(0.2)
                await target.start()

            async for round_ in fleet.rounds(asked):
                got += round_.token_ids
                if len(got) > 40 and restart is None:
                    restart = asyncio.create_task(restart_it())
            assert got == expected(120)
            assert restart is not None
            await restart

    asyncio.run(main())


def test_one_of_two_targets_killed() -> None:
    async def main() -> None:
        targets = [FakeWorker("target"), FakeWorker("target")]
        for target in targets:
            target.seconds = 0.002
        async with fleet_over(targets, [FakeWorker("draft")]) as fleet:
            streams = [asyncio.create_task(collect(fleet, request(100, prompt=[i + 1] * 9))) for i in range(6)]
            await until(lambda: all(len(target.calls) > 6 for target in targets))
            await targets[0].kill()
            for i, stream in enumerate(streams):
                assert tokens(await stream) == expected(100, [i + 1] * 9)

    asyncio.run(main())


def test_no_replica_with_other_weights_takes_over() -> None:
    async def main() -> None:
        targets = [FakeWorker("target"), FakeWorker("target")]
        targets[1].fingerprint = "weights-2"
        async with fleet_over(targets, [], recovery_timeout_seconds=0.4) as fleet:
            asked = replace(request(2000), speculation=PLAIN)
            targets[0].seconds = targets[1].seconds = 0.002
            with pytest.raises(NoTarget):  # noqa: PT012
                async for _ in fleet.rounds(asked):
                    used = [target for target in targets if target.calls]
                    if used[0].up:
                        await used[0].kill()
            assert sum(bool(target.calls) for target in targets) == 1

    asyncio.run(main())


def test_a_target_that_comes_back_with_other_weights_does_not_go_on() -> None:
    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], [], recovery_timeout_seconds=0.4, probe_interval_seconds=60.0) as fleet:
            target.seconds = 0.002
            killed = False
            with pytest.raises(NoTarget):  # noqa: PT012
                async for _ in fleet.rounds(replace(request(2000), speculation=PLAIN)):
                    if not killed:
                        killed = True
                        await target.kill()
                        target.fingerprint = "weights-2"
                        await target.start()

    asyncio.run(main())


def test_all_targets_gone_before_the_first_token() -> None:
    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], [FakeWorker("draft")], start_timeout_seconds=0.3) as fleet:
            await target.kill()
            with pytest.raises(NoTarget, match=PLAINLY):
                await collect(fleet, request())
            await until(lambda: not fleet.ready()[0])
            with pytest.raises(NoTarget):
                await collect(fleet, request())

    asyncio.run(main())


@pytest.mark.parametrize("fault", [Cut(), error(500, "oops"), hang], ids=["cut", "500", "hangs"])
def test_why_targets_failed_is_logged_and_not_sent_to_the_client(fault: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], [], start_timeout_seconds=0.2, verify_timeout_seconds=0.2) as fleet:
            target.always = fault
            with pytest.raises(NoTarget, match=PLAINLY):
                await collect(fleet, request())

    asyncio.run(main())
    assert "no target worker can go on: " in caplog.text


def test_all_targets_gone_in_mid_stream() -> None:
    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], [FakeWorker("draft")], recovery_timeout_seconds=0.3) as fleet:
            got: list[int] = []
            with pytest.raises(NoTarget, match=PLAINLY):  # noqa: PT012
                async for round_ in fleet.rounds(request(400)):
                    got += round_.token_ids
                    if len(got) > 20 and target.up:
                        await target.kill()
            assert got == expected(len(got))

    asyncio.run(main())


def test_overload_is_reported_to_the_client_before_any_token() -> None:
    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], [], start_timeout_seconds=6.0) as fleet:
            target.always = error(429, "queue_full", {"retry-after": "7"})
            with pytest.raises(Overloaded) as caught:
                await collect(fleet, request())
            assert caught.value.headers["retry-after"] == "7"
            assert len(target.calls) < 10

    asyncio.run(main())


def test_a_busy_target_passes_the_request_to_another() -> None:
    async def main() -> None:
        targets = [FakeWorker("target"), FakeWorker("target")]
        async with fleet_over(targets, []) as fleet:
            targets[0].always = error(429, "queue_full", {"retry-after": "30"})
            for _ in range(3):
                assert tokens(await collect(fleet, request(10))) == expected(10)

    asyncio.run(main())


def test_what_a_target_refuses_is_not_asked_again() -> None:
    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], []) as fleet:
            target.always = error(422, "bad_request")
            with pytest.raises(BadRequest, match="on purpose"):
                await collect(fleet, request())
            assert len(target.calls) == 1

    asyncio.run(main())


def test_a_retry_repeats_its_round_and_its_question() -> None:
    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], [FakeWorker("draft")]) as fleet:
            target.faults.extend([None, None, error(503, "engine_failure")])
            assert tokens(await collect(fleet, request(20))) == expected(20)
            first, second = (call for _, call in target.calls[2:4])
            assert (first.round, first.candidates, first.max_tokens) == (
                second.round,
                second.candidates,
                second.max_tokens,
            )

    asyncio.run(main())


def test_retries_are_bounded_by_a_budget() -> None:
    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], [], start_timeout_seconds=0.5) as fleet:
            target.always = error(500, "oops")
            results = await asyncio.gather(*(collect(fleet, request()) for _ in range(30)), return_exceptions=True)
            assert all(isinstance(result, NoTarget) for result in results)
            assert len(target.calls) < 30 + 70

    asyncio.run(main())


def test_streams_that_are_cut_over_and_over_do_not_open_the_breaker() -> None:
    """Each stream brought rounds, so the worker is healthy; only its connections break."""

    def cut_after(sent: int) -> Any:
        def change(answer: Answer) -> Any:
            nonlocal sent
            sent -= 1
            return answer if sent >= 0 else b'{"cut'

        return change

    async def main() -> None:
        target = FakeWorker("target")
        target.faults.extend(cut_after(2) for _ in range(8))
        async with fleet_over([target], []) as fleet:
            (worker,) = fleet._targets
            assert tokens(await collect(fleet, replace(request(), speculation=PLAIN))) == expected()
            assert len(target.calls) == 9
            assert worker.breaker.state == "closed"

    asyncio.run(main())


def test_the_only_target_is_asked_though_its_breaker_is_open() -> None:
    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], []) as fleet:
            (worker,) = fleet._targets
            while worker.breaker.state != "open":
                worker.breaker.failure()
            for asked in (request(), replace(request(), speculation=PLAIN)):
                assert tokens(await collect(fleet, asked)) == expected()
            assert worker.breaker.state == "closed", "it has shown that it is well"

    asyncio.run(main())


def test_a_target_with_an_open_breaker_is_left_alone_while_there_is_another() -> None:
    async def main() -> None:
        targets = [FakeWorker("target"), FakeWorker("target")]
        async with fleet_over(targets, []) as fleet:
            first, _ = fleet._targets
            first.breaker._clock = lambda: 0.0  # on a busy machine its rest would be over too soon
            while first.breaker.state != "open":
                first.breaker.failure()
            assert tokens(await collect(fleet, request())) == expected()
            assert targets[0].calls == []

    asyncio.run(main())


@pytest.mark.parametrize("speculative", [False, True])
def test_a_frozen_target_is_left_as_soon_as_it_is_found_down(speculative: bool) -> None:
    """It keeps its connections but does not answer; the call itself would wait for an hour."""

    async def main() -> None:
        targets = [FakeWorker("target"), FakeWorker("target")]
        draft = FakeWorker("draft")

        async def freeze() -> None:
            targets[0].loaded = False  # what the next probe finds
            await hang()

        targets[0].faults.append(freeze)
        asked = request() if speculative else replace(request(), speculation=PLAIN)
        async with fleet_over(targets, [draft], verify_timeout_seconds=3600.0) as fleet:
            async with asyncio.timeout(PATIENCE):
                assert tokens(await collect(fleet, asked)) == expected()
            assert targets[1].calls

    asyncio.run(main())


def test_the_only_target_is_waited_for_though_it_is_found_down() -> None:
    """It may merely be busy: starting over would lose its work."""

    async def main() -> None:
        target = FakeWorker("target")
        found_down = asyncio.Event()

        async def slow() -> None:
            target.loaded = False
            await found_down.wait()

        target.faults.append(slow)
        async with fleet_over([target], []) as fleet:
            (worker,) = fleet._targets
            running = asyncio.create_task(collect(fleet, replace(request(), speculation=PLAIN)))
            await until(lambda: worker.state == "down")
            target.loaded = True
            found_down.set()
            assert tokens(await running) == expected()
            assert len(target.calls) == 1

    asyncio.run(main())


def test_a_lost_delete_is_repeated() -> None:
    async def main() -> None:
        target = FakeWorker("target")
        target.delete_faults.extend([error(503, "not_ready"), error(500, "oops")])
        async with fleet_over([target], []) as fleet:
            await collect(fleet, request())
            await until(lambda: not target.sessions)
            assert not target.delete_faults

    asyncio.run(main())


def test_one_cut_connection_does_not_move_other_streams() -> None:
    async def main() -> None:
        targets = [FakeWorker("target"), FakeWorker("target")]
        going_on = asyncio.Event()
        targets[0].faults.append(going_on.wait)
        async with fleet_over(targets, [], probe_interval_seconds=60.0) as fleet:
            first, _ = fleet._targets
            running = asyncio.create_task(collect(fleet, replace(request(), speculation=PLAIN)))
            await until(lambda: targets[0].calls)
            with pytest.raises(WorkerUnreachable), first.judged():
                raise WorkerUnreachable("cut", "a connection of another stream")
            await until(lambda: first.state == "ready")
            going_on.set()
            assert tokens(await running) == expected()
            assert (len(targets[0].calls), len(targets[1].calls)) == (1, 0)

    asyncio.run(main())
