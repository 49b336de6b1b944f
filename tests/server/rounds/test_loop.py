"""Rounds over well-behaved workers: exact text, exact counts, sessions freed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from protocol.messages import Sampling
from server.backend import Round
from server.errors import InvalidRequest
from server.fleet.times import DraftTimes, StepTimes
from server.rounds.adaptive.planner import FixedPlanner, RoundOutcome, Times
from testing.fakes.model import STOP, continuation, top_token
from testing.fakes.worker import Answer, FakeWorker
from tests.server.fleet.harness import PLAIN, PROMPT, collect, expected, fleet_over, request, tokens, until


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


def test_rounds_tell_what_the_target_still_held() -> None:
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
            async with asyncio.timeout(5):
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
    """Plain decoding would draw: this strategy only verification knows, with and without drafts."""

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
        async with fleet_over([target], [draft], draft_timeout_seconds=5.0) as fleet:
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


@dataclass
class Observed:
    """What the planner and the drafter's times were told of the rounds with drafts."""

    outcomes: list[RoundOutcome] = field(default_factory=list)
    draft_times: list[tuple[int, int]] = field(default_factory=list)
    """γ and N."""
    rows: list[int] = field(default_factory=list)
    """As the target's times were told."""
    whole: list[tuple[float, float]] = field(default_factory=list)
    """For each outcome, what drafting and verifying all that was asked for is expected to take."""


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Observed:
    told = Observed()
    observe = DraftTimes.observe

    def observe_round(self: FixedPlanner, outcome: RoundOutcome, times: Times) -> None:
        told.outcomes.append(outcome)
        told.whole.append((times.drafts.draft(outcome.asked), times.steps.verify(1 + outcome.asked)))

    def observe_draft(self: DraftTimes, draft_tokens: int, seconds: float, num_candidates: int) -> None:
        told.draft_times.append((draft_tokens, num_candidates))
        observe(self, draft_tokens, seconds, num_candidates)

    monkeypatch.setattr(FixedPlanner, "observe", observe_round)
    monkeypatch.setattr(DraftTimes, "observe", observe_draft)
    monkeypatch.setattr(StepTimes, "observe_verify", lambda self, own_rows, *_: told.rows.append(own_rows))
    return told


def drafting(*candidates: list[int]) -> Callable[[Answer], Answer]:
    return lambda answer: {
        **answer,
        "candidates": [{"token_ids": ids, "logprobs": None, "q": None} for ids in candidates],
    }


def test_candidates_and_the_gain_of_more_than_one(observed: Observed) -> None:
    own = expected()
    wrong = (own[2] + 1) % STOP
    draft = FakeWorker("draft")
    draft.faults.extend(
        [
            None,
            drafting([own[1], wrong, 5], own[1:4], [wrong, own[2]]),  # the second goes on where the first fails
            drafting(own[5:8], [own[5], wrong], [own[5]]),  # the first is the best
            drafting([], own[9:12]),  # the first one has nothing
            drafting(own[13:16]),
        ]
    )

    async def main() -> list[Round]:
        async with fleet_over([FakeWorker("target")], [draft], draft_timeout_seconds=5.0) as fleet:
            return await collect(fleet, request(num_candidates=3))

    rounds = asyncio.run(main())
    assert tokens(rounds) == own
    assert [r.num_candidates for r in rounds[:5]] == [0, 3, 3, 1, 1]
    seen = observed.outcomes[:4]
    assert [(o.num_candidates, o.accepted, o.gain, o.rows) for o in seen] == [
        (3, 3, 2, 1 + 3 + 2 + 2),
        (3, 3, 0, 1 + 3 + 1),
        (3, 3, 0, 1 + 3),
        (3, 3, 0, 1 + 3),
    ]
    assert observed.rows[:5] == [1 + 3 + 2 + 2, 1 + 3 + 1, 1 + 3, 1 + 3, 1 + 3 * 3]
    assert {number for _, number in observed.draft_times} == {3}


def test_a_whole_draft_that_ends_with_a_stop_token_is_one_like_any_other(observed: Observed) -> None:
    async def main() -> None:
        draft = FakeWorker("draft")
        draft.faults.extend([None, None, drafting([48, 47, 46, STOP])])
        async with fleet_over([FakeWorker("target")], [draft], draft_timeout_seconds=5.0) as fleet:
            assert tokens(await collect(fleet, request(draft_tokens=4))) == expected()

    asyncio.run(main())
    assert observed.outcomes[1].accepted == 0
    assert len(observed.draft_times) == len(observed.outcomes)


@pytest.mark.parametrize(("last", "stops"), [(STOP, []), (7, [7]), (8, [7])])
def test_what_follows_a_drawn_stop_token_does_not_tell_that_it_was_drawn(
    observed: Observed, last: int, stops: list[int]
) -> None:
    """γ must not hang on noise that the next round draws with again."""

    async def main() -> None:
        draft = FakeWorker("draft")
        draft.faults.extend([None, None, drafting([48, last])])
        async with fleet_over([FakeWorker("target")], [draft], draft_timeout_seconds=5.0) as fleet:
            sampling = Sampling(seed=1, stop_token_ids=stops)
            assert tokens(await collect(fleet, replace(request(draft_tokens=4), sampling=sampling))) == expected()

    asyncio.run(main())
    assert expected()[5] != 48, "else the second round accepts the token before"
    first, second = observed.outcomes[:2]
    ended = last != 8
    assert (first.asked, first.drafted, first.accepted) == (4, 4, 4)
    assert (second.asked, second.drafted, second.accepted) == (4, 4 if ended else 2, 0)
    assert second.rows == (5 if ended else 3)
    if ended:
        assert second.draft_seconds >= observed.whole[1][0] > 0.0
        assert second.verify_seconds >= observed.whole[1][1] > 0.0
    assert len(observed.draft_times) == len(observed.outcomes) - ended, "how long a part took is no measure of γ"


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


def test_a_first_answer_is_no_measure_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have waited for a prompt that another call read, and count all of it as cached."""
    observed: list[int] = []
    monkeypatch.setattr(StepTimes, "observe_verify", lambda self, own_rows, *_: observed.append(own_rows))

    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], [FakeWorker("draft")]) as fleet:
            await collect(fleet, request(draft_tokens=3))
        verified = [1 + len(call.candidates[0].token_ids) if call.candidates else 1 for _, call in target.calls]
        assert observed == verified[1:]

    asyncio.run(main())


def test_a_streams_first_answer_is_no_measure_of_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is the prompt's."""
    observed: list[int] = []
    monkeypatch.setattr(StepTimes, "observe_plain", lambda self, rows, _: observed.append(rows))

    async def main() -> None:
        async with fleet_over([FakeWorker("target")], []) as fleet:
            rounds = await collect(fleet, request(enabled=False))
            assert len(observed) == len(rounds) - 1 > 0

    asyncio.run(main())


@pytest.mark.parametrize("choice", [0, 1, 5])
@pytest.mark.parametrize("enabled", [False, True])
def test_both_workers_are_told_the_choice_and_the_salt(choice: int, enabled: bool) -> None:
    """In every call: each choice of a request has noise of its own, each salt a memory of its own."""

    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        async with fleet_over([target], [draft]) as fleet:
            await collect(fleet, replace(request(enabled=enabled), choice_index=choice, cache_salt="mine"))
        assert bool(draft.calls) == enabled
        for _, call in (*target.calls, *draft.calls):
            assert (call.choice_index, call.cache_salt) == (choice, "mine")

    asyncio.run(main())


def test_a_draft_cut_short_by_a_stop_token_of_the_drafters_own_is_whole(observed: Observed) -> None:
    """A draft model may end texts by tokens that do not end the target's."""

    async def main() -> None:
        draft = FakeWorker("draft")
        own = draft.model
        draft.model = lambda: {**own(), "stop_token_ids": [7]}  # type: ignore[method-assign]
        draft.faults.extend([None, None, drafting([48, 7])])
        async with fleet_over([FakeWorker("target")], [draft], draft_timeout_seconds=5.0) as fleet:
            assert tokens(await collect(fleet, request(draft_tokens=4))) == expected()

    asyncio.run(main())
    second = observed.outcomes[1]
    assert (second.asked, second.drafted, second.accepted) == (4, 4, 0)
    assert len(observed.draft_times) == len(observed.outcomes) - 1


@pytest.mark.parametrize("max_tokens", [2, 3, 5, 9, 12])
def test_no_draft_is_as_long_as_what_remains(max_tokens: int) -> None:
    """The last token is the target's own: a draft for it would be computed for nothing."""

    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        async with fleet_over([target], [draft], draft_timeout_seconds=5.0) as fleet:
            rounds = await collect(fleet, request(max_tokens, draft_tokens=8))
        assert tokens(rounds) == expected(max_tokens)
        asked = [call for _, call in draft.calls if call.draft_tokens]
        assert asked or max_tokens == 2
        for call in (*asked, *(call for path, call in target.calls if path == "/v1/verify" and call.candidates)):
            drafted = len(call.candidates[0].token_ids) if hasattr(call, "candidates") else call.draft_tokens
            assert drafted < call.max_tokens

    asyncio.run(main())
