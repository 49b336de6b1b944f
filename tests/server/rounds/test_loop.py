"""Rounds over well-behaved workers: exact text, exact counts, sessions freed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from server.errors import InvalidRequest
from testing.fakes.model import STOP, continuation, top_token
from testing.fakes.worker import FakeWorker
from testing.patience import PATIENCE, until
from tests.server.fleet.harness import PLAIN, PROMPT, collect, expected, fleet_over, request, tokens


@pytest.mark.parametrize("draft_tokens", [1, 3, 8])
@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("adaptive", [False, True])
def test_text_is_the_targets(draft_tokens: int, wrong: float, adaptive: bool) -> None:
    async def main() -> None:
        async with fleet_over([FakeWorker("target")], [FakeWorker("draft", wrong=wrong)]) as fleet:
            rounds = await collect(fleet, request(draft_tokens=draft_tokens, adaptive=adaptive))
            assert tokens(rounds) == expected()
            assert [r.stop_reason for r in rounds] == [None] * (len(rounds) - 1) + ["length"]
            drafted = sum(r.num_drafted for r in rounds)
            accepted = sum(r.num_accepted for r in rounds)
            assert drafted > 0
            assert (accepted == drafted) == (wrong == 0.0) or adaptive
            if wrong == 1.0:
                assert accepted == 0

    asyncio.run(main())


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 9])
def test_max_tokens_is_exact(max_tokens: int) -> None:
    async def main() -> None:
        async with fleet_over([FakeWorker("target")], [FakeWorker("draft")]) as fleet:
            for asked in (request(max_tokens), replace(request(max_tokens), speculation=PLAIN)):
                rounds = await collect(fleet, asked)
                assert tokens(rounds) == expected(max_tokens)
                assert rounds[-1].stop_reason == "length"

    asyncio.run(main())


@pytest.mark.parametrize("stop_at", [8, 9, 11, 12, 20])
def test_a_stop_token_ends_it(stop_at: int) -> None:
    async def main() -> None:
        target = FakeWorker("target")
        target.stop_at = stop_at
        async with fleet_over([target], [FakeWorker("draft")]) as fleet:
            for asked in (request(), replace(request(), speculation=PLAIN)):
                rounds = await collect(fleet, asked)
                assert tokens(rounds) == [*expected(stop_at - 8), STOP]
                assert (rounds[-1].stop_reason, rounds[-1].stop_token_id) == ("stop_token", STOP)

    asyncio.run(main())


def test_plain_decoding_is_one_stream_and_drafts_nothing() -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        async with fleet_over([target], [draft]) as fleet:
            rounds = await collect(fleet, replace(request(), speculation=PLAIN))
            assert tokens(rounds) == expected()
            assert [path for path, _ in target.calls] == ["/v1/generate"]
            assert draft.calls == []
            assert all(r.num_drafted == 0 and r.num_accepted == 0 for r in rounds)

    asyncio.run(main())


def test_contexts_are_sent_once() -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        async with fleet_over([target], [draft]) as fleet:
            await collect(fleet, request())
            for worker in (target, draft):
                contexts = [call.context for _, call in worker.calls]
                assert contexts[0].start == 0
                assert all(context.start > 0 for context in contexts[1:])
                assert sum(len(c.token_ids) for c in contexts) <= 8 + 40
                rounds = [call.round for _, call in worker.calls]
                assert rounds == sorted(set(rounds))

    asyncio.run(main())


def test_rounds_report_what_the_target_still_held() -> None:
    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], [FakeWorker("draft")]) as fleet:
            rounds = await collect(fleet, request())
            # The fake holds what its session was sent before.
            assert [r.cached_tokens for r in rounds] == [call.context.start for _, call in target.calls]
            assert rounds[-1].cached_tokens

    asyncio.run(main())


def test_both_workers_read_the_prompt_at_the_same_time() -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        meeting = asyncio.Barrier(2)

        async def meet() -> None:
            async with asyncio.timeout(PATIENCE):
                await meeting.wait()

        target.faults.append(meet)
        draft.faults.append(meet)
        async with fleet_over([target], [draft]) as fleet:
            assert tokens(await collect(fleet, request())) == expected()
            assert draft.calls[0][1].draft_tokens == 0
            assert target.calls[0][1].candidates == []

    asyncio.run(main())


def test_sessions_are_deleted_at_the_end() -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        async with fleet_over([target], [draft]) as fleet:
            await collect(fleet, request())
            await until(lambda: not target.sessions and not draft.sessions)
            assert len(target.deleted) == len(draft.deleted) == 1

    asyncio.run(main())


@pytest.mark.parametrize("speculative", [False, True])
def test_closing_stops_generation_and_frees_sessions(speculative: bool) -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        target.seconds = 0.02
        async with fleet_over([target], [draft]) as fleet:
            asked = request(4000) if speculative else replace(request(4000), speculation=PLAIN)
            rounds = fleet.rounds(asked)
            async for _ in rounds:
                break
            await rounds.aclose()  # type: ignore[attr-defined]
            await until(lambda: not target.running and not draft.running)
            await until(lambda: not target.sessions and not draft.sessions)
            done = len(target.calls)
            assert done <= 3

    asyncio.run(main())


def test_cancelling_in_mid_round_frees_sessions() -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")

        async def hang() -> None:
            await asyncio.sleep(100)

        target.faults.extend([None, None, hang])
        async with fleet_over([target], [draft]) as fleet:
            task = asyncio.create_task(collect(fleet, request()))
            await until(lambda: len(target.calls) == 3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: not target.running and not target.sessions and not draft.sessions)

    asyncio.run(main())


def test_probabilistic_sends_q_to_the_target() -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        async with fleet_over([target], [draft]) as fleet:
            assert tokens(await collect(fleet, request(strategy="probabilistic"))) == expected()
            assert all(c.q is not None for _, call in target.calls[1:] for c in getattr(call, "candidates", []))

    asyncio.run(main())


NO_DRAFTS = {"none": [], "wrong": [1.0], "right": [0.0]}


@pytest.mark.parametrize("drafters", NO_DRAFTS.values(), ids=NO_DRAFTS)
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("stop_at", [None, 21])
def test_greedy_is_the_targets_top_token_whoever_drafts(
    drafters: list[float], adaptive: bool, stop_at: int | None
) -> None:
    """Plain decoding would draw: only verification has this strategy, with and without drafts."""

    async def main() -> None:
        target = FakeWorker("target")
        target.stop_at = stop_at
        async with fleet_over([target], [FakeWorker("draft", wrong=wrong) for wrong in drafters]) as fleet:
            rounds = await collect(fleet, request(strategy="greedy", adaptive=adaptive))
            top = continuation(PROMPT, 40, top_token)
            assert tokens(rounds) == (top if stop_at is None else [*top[: stop_at - 8], STOP])
            assert {path for path, _ in target.calls} == {"/v1/verify"}
            assert {call.strategy for _, call in target.calls} == {"greedy"}
            assert not any(r.lossless for r in rounds)
            assert (sum(r.num_drafted for r in rounds) > 0) == bool(drafters)

    asyncio.run(main())


def test_greedy_without_speculation_is_plain_decoding() -> None:
    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], []) as fleet:
            rounds = await collect(fleet, request(strategy="greedy", enabled=False))
            assert tokens(rounds) == expected()
            assert [path for path, _ in target.calls] == ["/v1/generate"]
            assert all(r.lossless for r in rounds)

    asyncio.run(main())


@pytest.mark.parametrize(("threshold", "accepted"), [(0.1, True), (0.2, True), (0.25, False), (1.0, False)])
def test_threshold_accepts_what_is_likely_enough(threshold: float, accepted: bool) -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft", wrong=1.0)
        async with fleet_over([target], [draft]) as fleet:
            rounds = await collect(fleet, request(strategy="threshold", acceptance_threshold=threshold))
            verified = [call for path, call in target.calls if path == "/v1/verify"]
            assert {(call.strategy, call.acceptance_threshold) for call in verified} == {("threshold", threshold)}
            assert sum(r.num_drafted for r in rounds) > 0
            assert all(r.num_accepted == (r.num_drafted if accepted else 0) for r in rounds[:-1])
            assert (tokens(rounds) == expected()) != accepted
            assert len(tokens(rounds)) == 40
            assert not any(r.lossless for r in rounds if r.num_drafted)

    asyncio.run(main())


def test_threshold_without_drafts_is_the_targets_own_text() -> None:
    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], []) as fleet:
            rounds = await collect(fleet, request(strategy="threshold"))
            assert tokens(rounds) == expected()
            assert all(r.lossless for r in rounds)

    asyncio.run(main())


def test_an_unknown_draft_model_is_refused_by_name() -> None:
    async def main() -> None:
        async with fleet_over([FakeWorker("target")], [FakeWorker("draft")]) as fleet:
            with pytest.raises(InvalidRequest, match="nobody") as caught:
                await collect(fleet, request(draft_model="nobody"))
            assert caught.value.param == "speculative.draft_model"
            assert tokens(await collect(fleet, request(draft_model="fake-draft"))) == expected()

    asyncio.run(main())


def test_named_pools() -> None:
    async def main() -> None:
        other = FakeWorker("draft", wrong=0.5)
        await other.start()
        first = FakeWorker("draft")
        async with fleet_over([FakeWorker("target")], [first], draft_pools={"other": [other.url]}) as fleet:
            assert tokens(await collect(fleet, request(draft_model="other"))) == expected()
            assert other.calls
            assert not first.calls
            assert fleet.model().drafter.names == ("auto", "fake-draft", "lookup", "other")
            assert tokens(await collect(fleet, request(draft_model="lookup"))) == expected()
            assert {call.draft_model for _, call in first.calls} == {"lookup"}
            await other.kill()

    asyncio.run(main())


@pytest.mark.parametrize("choice", [0, 1, 5])
@pytest.mark.parametrize("enabled", [False, True])
def test_both_workers_receive_the_choice_and_the_salt(choice: int, enabled: bool) -> None:
    """In every call: each choice of a request has noise of its own, each salt a memory of its own."""

    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        async with fleet_over([target], [draft]) as fleet:
            await collect(fleet, replace(request(enabled=enabled), choice_index=choice, cache_salt="mine"))
        assert bool(draft.calls) == enabled
        for _, call in (*target.calls, *draft.calls):
            assert (call.choice_index, call.cache_salt) == (choice, "mine")

    asyncio.run(main())


@pytest.mark.parametrize("max_tokens", [2, 3, 5, 9, 12])
def test_no_draft_is_as_long_as_what_remains(max_tokens: int) -> None:
    """The last token is the target's own: a draft for it would be computed for nothing."""

    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        async with fleet_over([target], [draft]) as fleet:
            rounds = await collect(fleet, request(max_tokens, draft_tokens=8))
        assert tokens(rounds) == expected(max_tokens)
        asked = [call for _, call in draft.calls if call.draft_tokens]
        assert asked or max_tokens == 2
        for call in (*asked, *(call for path, call in target.calls if path == "/v1/verify" and call.candidates)):
            drafted = len(call.candidates[0].token_ids) if hasattr(call, "candidates") else call.draft_tokens
            assert drafted < call.max_tokens

    asyncio.run(main())
