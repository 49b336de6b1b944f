"""Preparing further than the verification under way: a draft after a context that is only assumed (docs/lookahead.md).

What was prepared before stays for when it does not come, nothing is learned of what is only assumed, and under
`probabilistic` the joint distribution of three tokens is the target's with two verifications in flight, whose
assumptions come true and fail. A gateway that then looks at what was judged before it decides is noticed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from draft_worker import lookahead as lookahead_module
from draft_worker.drafter import Asked, Memory
from draft_worker.drafters.model import ModelDrafter
from draft_worker.lookahead import Lookahead
from draft_worker.pass_seconds import PassSeconds
from protocol.messages import Candidate, Context
from testing.fakes.runner import FakeRunner
from testing.wire import async_test, request
from testing.worker_apps import STOP, Drafter, blended, drafter
from tests.draft_worker.looking_ahead import give_time
from tests.draft_worker.test_in_flight import CHAT, GREEDY, Choosy, Gateway, alternatives
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
from tests.target_worker.strategies.simulator import DEPTH, MAX_GAMMA, TOKENS, VOCABULARY, g_test, models
from worker.session import Session

GAMMA = 3
CALLS = "tandem_draft_lookahead_calls_total"


@pytest.fixture(autouse=True)
def nearly_all_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookahead_module, "_FIRST_OUTCOMES", 12)
    monkeypatch.setattr(lookahead_module, "_LEAST_CHANCE", 0.0)
    give_time(monkeypatch)


async def asks(worker: Drafter, ids: list[int], number: int, assumed: int = 0, **fields: Any) -> Any:
    """A draft, and the alternatives that are prepared after it."""
    held = {"ids": ids, "held": 0, "round": number, "draft_tokens": GAMMA, "lookahead_tokens": GAMMA}
    asked = {**held, "sampling": GREEDY, "lookahead_seconds": 30.0, **fields}
    answer = await worker.draft(**asked, **({"assumed_tokens": assumed} if assumed else {}))
    found = await alternatives(worker, round=number, session_id=answer["session_id"])
    return answer, [one["alternative"] for one in found if one["whole"]]


def likeliest(found: list[Any]) -> Any:
    return max(found, key=lambda one: len(one["token_ids"]))


@async_test
async def test_it_goes_on_from_what_is_assumed_and_back_if_that_fails() -> None:
    async with drafter(FakeRunner(logits=blended(0.3))) as worker:
        answer, first = await asks(worker, CHAT, 0)
        levels, context = [first], list(CHAT)
        for number in range(1, 4):
            assumed = likeliest(levels[-1])
            context += assumed["token_ids"]
            answer, found = await asks(worker, context, number, len(context) - len(CHAT))
            assert answer["source"] == "cache"
            assert answer["candidates"][0]["token_ids"] == assumed["candidate"]["token_ids"]
            levels.append(found)
        assert await worker.metric(CALLS) == 0, "nothing is certain yet"
        # The first verdict is as assumed, the second is not: what was prepared there is there.
        certain = [*CHAT, *likeliest(levels[0])["token_ids"]]
        other = next(one for one in levels[1] if len(one["token_ids"]) <= GAMMA)
        answer, _ = await asks(worker, [*certain, *other["token_ids"]], 4)
        assert answer["source"] == "cache"
        assert answer["candidates"][0]["token_ids"] == other["candidate"]["token_ids"]
        assert await worker.metric(CALLS) == 2, "of each verdict, once"
        drawn = await worker.draft(
            ids=[*certain, *other["token_ids"]], session_id="o", draft_tokens=GAMMA, sampling=GREEDY
        )
        assert drawn["candidates"][0]["token_ids"] == other["candidate"]["token_ids"]


@async_test
async def test_a_verdict_is_learned_from_though_the_next_call_assumes_more() -> None:
    async with drafter(FakeRunner(logits=blended(0.3))) as worker:
        _, found = await asks(worker, CHAT, 0)
        certain, context = list(CHAT), list(CHAT)
        for number in range(1, 6):
            context += likeliest(found)["token_ids"]
            assumed = len(context) - len(certain)
            answer, found = await asks(worker, context, number, assumed)
            assert answer["source"] == "cache"
            assert await worker.metric(CALLS) == max(0, number - 2)
            if number >= 2:  # a verdict has come meanwhile
                certain = certain + context[len(certain) : len(certain) + GAMMA + 1]


@async_test
async def test_a_text_that_went_another_way_leaves_nothing_of_what_was_assumed() -> None:
    async with drafter(FakeRunner(logits=blended(0.3))) as worker:
        _, found = await asks(worker, CHAT, 0)
        assumed = likeliest(found)["token_ids"]
        await asks(worker, [*CHAT, *assumed], 1, len(assumed))
        other = [*CHAT, *assumed[:1], (assumed[1] + 1) % STOP]
        await asks(worker, other, 2)
        answer, _ = await asks(worker, [*CHAT, *assumed], 3)
        assert answer["source"] == "model"


@async_test
async def test_the_time_that_there_is_may_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PassSeconds, "of", lambda self, rows: 0.001)
    async with drafter() as worker:
        _, found = await asks(worker, CHAT, 0)
        assert found
        _, found = await asks(worker, CHAT, 0, session_id="t", lookahead_seconds=1e-9)
        assert not found


@async_test
async def test_auto_takes_certain_contexts_only() -> None:
    async with drafter() as worker:
        message = {"ids": CHAT, "draft_tokens": 3, "sampling": GREEDY, "draft_model": "auto", "assumed_tokens": 2}
        status, body = await worker.post("/v1/draft", request(**message))
        assert (status, body["error"]["field"]) == (400, "assumed_tokens")


@pytest.mark.parametrize("prompt", [0, 3, len(CHAT)])
@async_test
async def test_no_more_can_be_assumed_than_was_generated(prompt: int) -> None:
    """Nothing where the whole context is the prompt."""
    async with drafter() as worker:
        message = {"ids": CHAT, "draft_tokens": 3, "sampling": GREEDY, "num_prompt_tokens": prompt}
        output = len(CHAT) - prompt
        assert (await worker.post("/v1/draft", request(**message, assumed_tokens=output)))[0] == 200
        status, body = await worker.post("/v1/draft", request(**message, round=1, assumed_tokens=output + 1))
        assert (status, body["error"]["field"]) == (400, "assumed_tokens")


@dataclass
class Chain:
    """What is in flight for a sequence: what the verdict of each may be, the next one's first, and whether it was sent
    when another was in flight already."""

    held: list[tuple[dict[tuple[int, ...], Candidate], bool]] = field(default_factory=list)
    assumed: list[int] = field(default_factory=list)
    """What is assumed of the sequence beyond its ids."""


class Deep:
    """The worker's side for `RUNS` sequences, each with three verifications under way at most.

    Half of them assume that all is accepted, as a gateway does. But then a third one is never reached within so few
    tokens: the others assume that nothing is, which the worker can't tell from that.
    """

    def __init__(self, gateway: Gateway) -> None:
        engine: Any = Engine(gateway.both)
        self.lookahead = Lookahead(engine, Counts())  # type: ignore[arg-type]
        self.model = ModelDrafter(engine, self.lookahead)
        self.sessions = [Session[Memory](str(seed), None, {}) for seed in range(RUNS)]
        for session in self.sessions:
            session.emit(PROMPT)
        self.chains = [Chain() for _ in range(RUNS)]
        self.came = self.failed = 0

    async def asks(self, seed: int) -> Candidate:
        """A draft after the sequence and what is assumed of it; other drafts are prepared after that."""
        session, assumed = self.sessions[seed], self.chains[seed].assumed
        session.emit(assumed)
        session.latest_round = _REQUEST.round
        most = min(MAX_GAMMA, DEPTH - (len(session.ids) - len(PROMPT)) - 1)
        sampling = _REQUEST.sampling.model_copy(update={"seed": seed})
        told = {"draft_tokens": most, "sampling": sampling, "assumed_tokens": len(assumed) or None}
        asked = Asked(_REQUEST.model_copy(update=told), session, session.settle("all"), 0.0)
        self.lookahead.settle(asked)
        drafted = (await self.model.draft(asked)).candidates[0]
        self.lookahead.begin(asked, drafted.token_ids, most, most)
        length = len(session.ids) - len(assumed)
        session.read(Context(start=length, token_ids=[], prefix_hash=session.hashes.at(length)))
        return drafted

    async def sends(self, seed: int) -> None:
        """What is whole by now is sent ahead; and if that is the first, the next is asked for."""
        chain, session = self.chains[seed], self.sessions[seed]
        found = [one.alternative for one in await self.lookahead.alternatives(session, 0, 0.0) if one.whole]
        if not found:
            return
        deeper = bool(chain.held)
        chain.held.append(({tuple(one.token_ids): one.candidate for one in found}, deeper))
        room = len(PROMPT) + DEPTH - 1 - len(session.ids) - len(chain.assumed)
        end = (max if seed % 2 else min)(found, key=lambda one: len(one.token_ids))
        if len(end.token_ids) < room:
            chain.assumed = [*chain.assumed, *end.token_ids]
            drafted = await self.asks(seed)
            assert (drafted.token_ids, drafted.q) == (end.candidate.token_ids, end.candidate.q)

    def resolve(self, seed: int, emitted: list[int]) -> tuple[Candidate, bool] | None:
        """The draft whose verification was in flight for what came, and whether it was sent that early."""
        chain = self.chains[seed]
        held, deeper = chain.held.pop(0) if chain.held else ({}, False)
        found = held.get(tuple(emitted))
        if found is None or chain.assumed[: len(emitted)] != emitted:
            self.failed += bool(chain.held)
            chain.held, chain.assumed = [], []
        else:
            chain.assumed = chain.assumed[len(emitted) :]
        return (found, deeper) if found is not None else None


def simulate(gateway: Gateway) -> tuple[torch.Tensor, Deep]:
    """How often each sequence of three tokens came, int64 [V ** 3]."""
    worker = Deep(gateway)

    async def run() -> None:
        ahead: dict[int, tuple[Candidate, bool]] = {}
        while alive := [run for run in range(RUNS) if len(worker.sessions[run].ids) < len(PROMPT) + TOKENS]:
            texts = [worker.sessions[seed].ids[len(PROMPT) :] for seed in alive]
            drafts = []
            for seed in alive:
                if not worker.chains[seed].assumed:  # else the worker is further already
                    drawn = await worker.asks(seed)
                    drafts.append(ahead[seed][0] if seed in ahead else drawn)
                    assert (drafts[-1].token_ids, drafts[-1].q) == (drawn.token_ids, drawn.q)
                else:
                    drafts.append(ahead[seed][0])
            for _ in range(2):
                await asyncio.gather(*worker.lookahead._tasks)
                for seed in alive:
                    if len(worker.chains[seed].held) < 2:
                        await worker.sends(seed)
            settled = gateway.settle(alive, texts, drafts, set(ahead))
            ahead = {}
            for seed, emitted in zip(alive, settled, strict=True):
                worker.sessions[seed].emit(emitted)
                goes_on = len(worker.sessions[seed].ids) < len(PROMPT) + TOKENS
                if goes_on and (found := worker.resolve(seed, emitted)) is not None:
                    ahead[seed] = found
                    worker.came += found[1]

    asyncio.run(run())
    ids = [session.ids[len(PROMPT) : len(PROMPT) + TOKENS] for session in worker.sessions]
    cells = [node_of(text) - node_of([0] * TOKENS) for text in ids]
    return torch.bincount(torch.tensor(cells), minlength=VOCABULARY**TOKENS), worker


@pytest.fixture
def more_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as it takes to notice what is wrong with the few that are sent that early."""
    for module in ("test_lookahead_distribution", "test_in_flight", "test_assumed"):
        monkeypatch.setattr(f"tests.draft_worker.{module}.RUNS", 2 * RUNS)


def stays_the_targets() -> None:
    gateway = Gateway(models())
    counts, worker = simulate(gateway)
    assert min(worker.came, worker.failed) > 40, (worker.came, worker.failed)
    assert g_test(counts, gateway.both.exact_joint()) > FAR
    assert g_test(pairs(counts), pairs(gateway.both.exact_joint())) > FAR


def test_deeper_verifications_leave_the_targets_distribution() -> None:
    stays_the_targets()


@pytest.mark.slow
@pytest.mark.usefixtures("more_runs")
def test_many_of_them_leave_it_too() -> None:
    stays_the_targets()


@pytest.mark.slow
@pytest.mark.usefixtures("more_runs")
def test_verdicts_in_flight_that_are_used_only_if_they_please_are_noticed() -> None:
    gateway = Choosy(models())
    counts, exact = simulate(gateway)[0], gateway.both.exact_joint()
    assert min(g_test(counts, exact), g_test(pairs(counts), pairs(exact))) < FAR
