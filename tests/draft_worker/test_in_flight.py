"""What is prepared, as alternatives for a verification in flight (docs/lookahead.md).

Under `probabilistic` the joint distribution of three tokens is the target's through those that came true and those that
did not; and a gateway that looks at a verdict before it decides whether to use it is noticed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from draft_worker import lookahead as lookahead_module
from draft_worker.drafter import Asked, Memory
from draft_worker.drafters.model import ModelDrafter
from draft_worker.lookahead import Lookahead
from protocol.messages import Candidate
from testing.fakes.runner import FakeRunner
from testing.wire import async_test, pause
from testing.worker_apps import STOP, Drafter, blended, drafter, target
from tests.draft_worker.test_lookahead_distribution import (
    _REQUEST,
    FAR,
    PROMPT,
    RUNS,
    Counts,
    Engine,
    node_of,
    pairs,
)
from tests.target_worker.strategies import simulator
from tests.target_worker.strategies.simulator import (
    DEPTH,
    MAX_GAMMA,
    TOKENS,
    VOCABULARY,
    Models,
    g_test,
    models,
    verified,
)
from worker.session import Session


class Gateway:
    """Verifies drafts, those that were sent ahead too, for `RUNS` sequences at once."""

    def __init__(self, both: Models) -> None:
        self.both = both
        self.grid = [simulator._rows(seed) for seed in range(RUNS)]
        self.used = self.discarded = 0

    def judge(self, alive: list[int], texts: list[list[int]], drafts: list[Candidate]) -> list[tuple[int, list[int]]]:
        """How many tokens each draft got right, and the tokens emitted."""
        width = MAX_GAMMA + 1
        nodes, rows = [], []
        for seed, output, candidate in zip(alive, texts, drafts, strict=True):
            for place in range(width):
                there = [*output, *candidate.token_ids[:place]] if place <= len(candidate.token_ids) else []
                nodes.append(node_of(there))
                rows.append(self.grid[seed][min(len(output) + place, DEPTH)])
        distribution = self.both.target.rows(torch.tensor(nodes))
        return verified(distribution, rows, drafts, width)

    def settle(
        self, alive: list[int], texts: list[list[int]], drafts: list[Candidate], ahead: set[int]
    ) -> list[list[int]]:
        """The tokens that each round brings; `ahead`: those whose verification was sent before the last verdict."""
        self.used += len(ahead)
        return [emitted for _, emitted in self.judge(alive, texts, drafts)]


class Choosy(Gateway):
    """Broken: a verdict sent ahead is used if its first token pleases; else it is asked for again, without a draft."""

    def settle(
        self, alive: list[int], texts: list[list[int]], drafts: list[Candidate], ahead: set[int]
    ) -> list[list[int]]:
        found = super().settle(alive, texts, drafts, ahead)
        again = self.judge(alive, texts, [Candidate(token_ids=[], logprobs=[], q=[]) for _ in alive])
        return [
            emitted if seed not in ahead or emitted[0] >= 3 else other
            for seed, emitted, (_, other) in zip(alive, found, again, strict=True)
        ]


def simulate(gateway: Gateway) -> torch.Tensor:
    """How often each sequence of three tokens came, int64 [V ** 3]."""
    engine: Any = Engine(gateway.both)
    lookahead = Lookahead(engine, Counts())  # type: ignore[arg-type]
    model = ModelDrafter(engine, lookahead)
    sessions = [Session[Memory](str(seed), None, {}, list(PROMPT)) for seed in range(RUNS)]
    sent: dict[int, dict[tuple[int, ...], Candidate]] = {}

    async def run() -> None:
        came: dict[int, list[int]] = {}
        while alive := [run for run in range(RUNS) if len(sessions[run].ids) < len(PROMPT) + TOKENS]:
            drafts: list[Candidate] = []
            ahead: set[int] = set()
            for seed in alive:
                session = sessions[seed]
                session.latest_round = _REQUEST.round
                most = min(MAX_GAMMA, DEPTH - (len(session.ids) - len(PROMPT)) - 1)
                sampling = _REQUEST.sampling.model_copy(update={"seed": seed})
                request = _REQUEST.model_copy(update={"draft_tokens": most, "sampling": sampling})
                asked = Asked(request, session, session.settle("all"), 0.0)
                lookahead.settle(asked)
                drafted = (await model.draft(asked)).candidates[0]
                if (candidate := sent.pop(seed, {}).get(tuple(came.get(seed, [])))) is not None:
                    assert candidate.token_ids == drafted.token_ids, "it is the draft that is drawn there"
                    assert candidate.q == drafted.q
                    ahead.add(seed)
                drafts.append(drafted)
                lookahead.begin(asked, drafted.token_ids, most, most)
                await asyncio.gather(*lookahead._tasks)
            for seed in alive:
                found = await lookahead.alternatives(sessions[seed], _REQUEST.round, 0.0)
                whole = [one.alternative for one in found if one.whole]
                sent[seed] = {tuple(one.token_ids): one.candidate for one in whole}
            texts = [sessions[seed].ids[len(PROMPT) :] for seed in alive]
            for seed, emitted in zip(alive, gateway.settle(alive, texts, drafts, ahead), strict=True):
                came[seed] = emitted
                gateway.discarded += bool(sent[seed]) and tuple(emitted) not in sent[seed]
                sessions[seed].emit(emitted)

    asyncio.run(run())
    cells = [node_of(s.ids[len(PROMPT) : len(PROMPT) + TOKENS]) - node_of([0] * TOKENS) for s in sessions]
    return torch.bincount(torch.tensor(cells), minlength=VOCABULARY**TOKENS)


@pytest.fixture
def nearly_all_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookahead_module, "_FIRST_OUTCOMES", 12)
    monkeypatch.setattr(lookahead_module, "_LEAST_CHANCE", 0.0)


@pytest.mark.usefixtures("nearly_all_is_prepared")
def test_verifications_ahead_leave_the_targets_distribution() -> None:
    gateway = Gateway(models())
    counts = simulate(gateway)
    assert min(gateway.used, gateway.discarded) > RUNS // 20, (gateway.used, gateway.discarded)
    assert g_test(counts, gateway.both.exact_joint()) > FAR
    assert g_test(pairs(counts), pairs(gateway.both.exact_joint())) > FAR


@pytest.mark.usefixtures("nearly_all_is_prepared")
@pytest.mark.slow
def test_a_verdict_that_is_used_only_if_it_pleases_is_noticed() -> None:
    gateway = Choosy(models())
    assert g_test(simulate(gateway), gateway.both.exact_joint()) < FAR


GREEDY = {"temperature": 0.0, "logit_bias": {str(STOP): -100.0}}
CHAT = [3, 1, 4, 1, 5, 9, 2, 6]


async def alternatives(worker: Drafter, **fields: Any) -> Any:
    status, body = await worker.post("/v1/prepared", {"session_id": "s", "round": 0, "wait_ms": 5000, **fields})
    assert status == 200, body
    return body["prepared"]


@async_test
async def test_alternatives_are_drafts_that_are_drawn_after_what_they_say_came() -> None:
    async with drafter(FakeRunner(logits=blended(0.3))) as worker, target() as judge:
        ids, held, used = list(CHAT), 0, 0
        for number in range(12):
            answer = await worker.draft(
                ids=ids, held=held, round=number, draft_tokens=3, lookahead_tokens=3, sampling=GREEDY
            )
            draft = answer["candidates"][0]
            found = await alternatives(worker, round=number)
            verdict = await judge.verify(ids=ids, session_id=None, candidates=[draft], sampling=GREEDY)
            held, ids = len(ids), [*ids, *verdict["token_ids"]]
            for one in (prepared["alternative"] for prepared in found if prepared["whole"]):
                context = [*ids[:held], *one["token_ids"]]
                drawn = await worker.draft(ids=context, session_id="o", round=number, draft_tokens=3, sampling=GREEDY)
                assert one["candidate"]["token_ids"][:3] == drawn["candidates"][0]["token_ids"]
                used += context == ids
        assert used


@async_test
async def test_nothing_is_told_of_another_round_or_session() -> None:
    async with drafter() as worker:
        await worker.draft(ids=CHAT, draft_tokens=3, lookahead_tokens=3, sampling=GREEDY)
        assert await alternatives(worker)
        assert await alternatives(worker, round=1) == []
        assert await alternatives(worker, session_id="other") == []
        await worker.draft(ids=[*CHAT, 1], round=1, draft_tokens=3, sampling=GREEDY)
        assert await alternatives(worker) == []
        assert await alternatives(worker, round=1) == []


@async_test
async def test_what_is_asked_ends_with_the_next_draft() -> None:
    async with drafter() as worker:
        await worker.draft(ids=CHAT, draft_tokens=3, lookahead_tokens=3, sampling=GREEDY)
        waiting = asyncio.ensure_future(alternatives(worker, wait_ms=10_000))
        await pause()
        await worker.draft(ids=[*CHAT, 1], round=1, draft_tokens=3, sampling=GREEDY)
        await asyncio.wait_for(waiting, 5)
