"""Each fault of a draft worker in mid-request: the text stays the target's, failures are counted, nothing hangs."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from protocol.errors import BadRequest
from protocol.messages import DraftRequest
from testing.fakes.worker import Cut, FakeWorker, Reply, error
from testing.patience import PATIENCE
from tests.server.fleet.harness import (
    PROMPT,
    collect,
    counted,
    expected,
    fleet_over,
    hang,
    request,
    set_to,
    tokens,
)

PLAINLY = "^no target worker (can go on|is ready)$"
"""What a client receives: neither a worker's address nor an exception's text."""


def drafting(ids: list[Any]) -> Any:
    return set_to(candidates=[{"token_ids": ids, "logprobs": None, "q": None}])


LIES_OF_DRAFTS = {
    "ids outside the vocabulary": drafting([50, 1, 2]),
    "negative ids": drafting([-1, 1, 2]),
    "huge ids": drafting([2**63, 1, 2]),
    "ids that are text": drafting(["a"]),
    "too long": drafting([1, 2, 3, 4]),
    "too many": set_to(candidates=[{"token_ids": [1]}] * 2),
    "another session": set_to(session_id="other"),
    "another round": set_to(round=77),
    "NaN time": set_to(timings={"queue_ms": float("nan"), "forward_ms": 0.0, "sample_ms": 0.0, "total_ms": 0.0}),
    "negative time": set_to(timings={"queue_ms": -1.0, "forward_ms": 0.0, "sample_ms": 0.0, "total_ms": 0.0}),
    "NaN logprobs": set_to(candidates=[{"token_ids": [1], "logprobs": [float("nan")]}]),
    "no candidates field": lambda answer: {"round": answer["round"]},
    "html": lambda answer: b"<html>" + b"x" * 1000,
    "empty": lambda answer: b"",
    "ten megabytes": lambda answer: b'{"candidates": [' + b"1," * 5_000_000 + b"1]}",
    "cut in mid-body": Cut(),
    "500": error(500, "oops"),
    "503": error(503, "not_ready"),
    "429": error(429, "queue_full", {"retry-after": "0.05"}),
    "400": error(400, "unsupported"),
    "409 for ever": error(409, "context_mismatch"),
    "stale round": error(409, "stale_round"),
    "redirect": Reply(307, b"", {"location": "http://127.0.0.1:1/"}),
    "hangs": hang,
}


@pytest.mark.parametrize("fault", LIES_OF_DRAFTS.values(), ids=LIES_OF_DRAFTS)
@pytest.mark.parametrize("always", [False, True])
def test_a_bad_draft_worker_never_changes_the_text(fault: Any, always: bool) -> None:
    async def main() -> None:
        draft = FakeWorker("draft")
        # Only a hanging worker is waited for that long; the others' good answers may be late on a busy machine.
        seconds = 0.6 if fault is hang else 30.0
        async with fleet_over([FakeWorker("target")], [draft], draft_timeout_seconds=seconds) as fleet:
            draft.faults.extend([None, None, fault])
            draft.always = fault if always else None
            rounds = await collect(fleet, request(60))
            assert tokens(rounds) == expected(60)
            assert sum(r.num_drafted for r in rounds) > 0
            failed = counted(fleet, "tandem_worker_failures_total") + counted(fleet, "tandem_context_resends_total")
            assert failed > 0
            calls = len(draft.calls)
            assert tokens(await collect(fleet, request(30))) == expected(30)
            if not always:
                assert len(draft.calls) > calls

    asyncio.run(main())


def drafting_from(*logprobs: float) -> Any:
    """One token, with a q of these log-probabilities over ids 0, 1, …; the first is the drafted one's."""
    q = {"token_ids": list(range(len(logprobs))), "logprobs": list(logprobs)}
    return set_to(candidates=[{"token_ids": [0], "logprobs": None, "q": [q]}])


LIES_OF_Q = {
    "sums to a little less": drafting_from(math.log(0.9995)),
    "sums to a little more": drafting_from(math.log(0.9), math.log(0.1005)),
    "above one": drafting_from(800.0),
    "no probability for what was drafted": drafting_from(-800.0, 0.0),
    "without what was drafted": set_to(
        candidates=[{"token_ids": [0], "logprobs": None, "q": [{"token_ids": [1], "logprobs": [0.0]}]}]
    ),
    "names a token twice": set_to(
        candidates=[{"token_ids": [0], "logprobs": None, "q": [{"token_ids": [0, 0], "logprobs": [math.log(0.5)] * 2}]}]
    ),
}


@pytest.mark.parametrize("fault", LIES_OF_Q.values(), ids=LIES_OF_Q)
def test_a_q_that_a_target_would_refuse_never_reaches_it(fault: Any) -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        async with fleet_over([target], [draft]) as fleet:
            draft.faults.extend([None, None, fault])
            assert tokens(await collect(fleet, request(strategy="probabilistic"))) == expected()
            assert not draft.faults
            assert counted(fleet, "tandem_worker_failures_total") == 1
            sent = [c for path, call in target.calls if path == "/v1/verify" for c in call.candidates]
            assert sent
            assert {q.logprobs[0] for candidate in sent for q in candidate.q or ()} == {0.0}, "the good ones' alone"

    asyncio.run(main())


def test_float32_may_leave_a_q_a_little_short() -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        draft.faults.extend([None, drafting_from(math.log(0.99995))])
        async with fleet_over([target], [draft]) as fleet:
            assert tokens(await collect(fleet, request(strategy="probabilistic"))) == expected()
            assert counted(fleet, "tandem_worker_failures_total") == 0

    asyncio.run(main())


@pytest.mark.parametrize("at", [1, 4], ids=["first draft", "in mid-stream"])
@pytest.mark.parametrize("field", ["candidates", "candidates.0.q.1.logprobs"])
def test_a_draft_that_the_target_refuses_costs_the_drafter_not_the_client(at: int, field: str) -> None:
    """For faults that the gateway's own checks let through."""

    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        async with fleet_over([target], [draft]) as fleet:
            target.faults.extend([None] * at + [error(400, "bad_request", field=field)])
            rounds = await collect(fleet, request())
            assert tokens(rounds) == expected()
            refused, repeated = (call for _, call in target.calls[at : at + 2])
            assert refused.candidates
            assert repeated.candidates == []
            assert repeated.round > refused.round
            assert [bool(r.num_drafted) for r in rounds[1:at]] == [True] * (at - 1)
            assert not any(r.num_drafted for r in rounds[at:]), "what this request drafts is not asked for again"
            assert counted(fleet, "tandem_worker_failures_total") == 1
            (drafter,) = fleet._drafters
            assert drafter.streams == 0
            assert sum(r.num_drafted for r in await collect(fleet, request())) > 0

    asyncio.run(main())


@pytest.mark.parametrize("field", [None, "strategy", "sampling.top_p", "candidates_of_another_kind"])
def test_other_refusals_of_a_round_with_drafts_reach_the_client(field: str | None) -> None:
    async def main() -> None:
        target = FakeWorker("target")
        async with fleet_over([target], [FakeWorker("draft")]) as fleet:
            target.faults.extend([None, error(400, "bad_request", field=field)])
            with pytest.raises(BadRequest, match="on purpose"):
                await collect(fleet, request())

    asyncio.run(main())


def test_the_breaker_opens_probes_and_closes() -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        async with fleet_over([target], [draft]) as fleet:
            breaker, now = next(iter(fleet._drafters)).breaker, 0.0
            breaker._clock = lambda: now  # on a busy machine its rest would be over too soon
            draft.always = error(500, "oops")
            for _ in range(3):
                assert tokens(await collect(fleet, request(20))) == expected(20)
            assert not breaker.available
            calls = len(draft.calls)
            assert tokens(await collect(fleet, request(20))) == expected(20)
            assert len(draft.calls) == calls, "an open breaker lets nothing through"
            draft.always = None
            now += 3600.0
            rounds = await collect(fleet, request(40))
            assert tokens(rounds) == expected(40)
            assert sum(r.num_drafted for r in rounds) > 0
            assert {breaker.state} == {"closed"}

    asyncio.run(main())


def test_a_draft_worker_that_reads_slowly_is_not_waited_for() -> None:
    async def main() -> None:
        draft = FakeWorker("draft")
        draft.faults.append(hang)
        async with fleet_over([FakeWorker("target")], [draft], draft_timeout_seconds=3600.0) as fleet:
            async with asyncio.timeout(PATIENCE):
                assert tokens(await collect(fleet, request(60))) == expected(60)

    asyncio.run(main())


def test_drafts_get_shorter_at_the_end_of_the_draft_models_context() -> None:
    async def main() -> None:
        draft = FakeWorker("draft")
        draft.context_length = len(PROMPT) + 16
        async with fleet_over([FakeWorker("target")], [draft]) as fleet:
            rounds = await collect(fleet, request(30, draft_tokens=8))
            assert tokens(rounds) == expected(30)
        # The last draft ends where the context does, though γ would have gone on.
        length, drafted_until = len(PROMPT), 0
        for round_ in rounds:
            if round_.num_drafted:
                drafted_until = length + round_.num_drafted
            length += len(round_.token_ids)
        assert drafted_until == draft.context_length

    asyncio.run(main())


@pytest.mark.parametrize("takes_it", [False, True])
@pytest.mark.parametrize("strategy", ["deterministic", "probabilistic"])
def test_only_a_worker_that_takes_it_is_asked_for_what_it_has_prepared(takes_it: bool, strategy: str) -> None:
    """And never where q is wanted: how much is there may follow from tokens that are drawn again."""

    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        target.seconds, draft.ahead, draft.extends = 0.02, True, takes_it
        async with fleet_over([target], [draft], lookahead="on") as fleet:
            asked = request(60, strategy=strategy, adaptive=True)
            rounds = await collect(fleet, asked)
            assert tokens(rounds) == expected(60)
        drafts = [call for _, call in draft.calls if isinstance(call, DraftRequest) and call.lookahead_tokens]
        assert drafts
        wanted = [call for call in drafts if call.prepared_tokens]
        assert bool(wanted) == (takes_it and strategy == "deterministic")
        assert all(call.prepared_tokens <= call.max_tokens - 1 for call in wanted)
        if wanted:
            assert any(round_.num_drafted > call.draft_tokens for round_ in rounds for call in wanted)

    asyncio.run(main())


def test_a_draft_worker_killed_and_restarted() -> None:
    async def main() -> None:
        target, draft = FakeWorker("target"), FakeWorker("draft")
        target.seconds = 0.003
        async with fleet_over([target], [draft]) as fleet:
            stream = fleet.rounds(request(600))
            got: list[int] = []
            after = 0
            async for round_ in stream:
                got += round_.token_ids
                if len(got) > 50 and draft.up and not after:
                    await draft.kill()
                if len(got) > 100 and not draft.up:
                    await draft.start()
                    after = 1
                if after and round_.num_drafted:
                    after = 2
            assert got == expected(600)
            assert after == 2

    asyncio.run(main())
