"""Under `probabilistic`, verifications ahead of what `auto` would draft leave the target's distribution as it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from draft_worker import lookahead as lookahead_module
from draft_worker.auto import Auto
from draft_worker.drafter import Asked, Memory
from draft_worker.drafters.model import ModelDrafter
from draft_worker.foresight import Foresight
from draft_worker.lookahead import Lookahead
from draft_worker.outcomes import Ahead
from engines.sampling import noise
from protocol.messages import Candidate, DraftRequest
from tests.draft_worker.test_auto_distribution import PROMPT, Shortened
from tests.draft_worker.test_in_flight import Gateway
from tests.draft_worker.test_lookahead_distribution import _REQUEST, FAR, RUNS, Counts, Engine, node_of, pairs
from tests.target_worker.strategies import simulator
from tests.target_worker.strategies.simulator import DEPTH, MAX_GAMMA, TOKENS, VOCABULARY, g_test, models
from worker.session import Session

BEFORE = len(PROMPT) - simulator.PROMPT
"""Tokens of the prompt that lookup has, and the models don't see."""
NONE = Candidate(token_ids=[], logprobs=[], q=[])


class Late(Engine):
    """Of what is to be prepared, there is no time for tokens from 3 on."""

    async def draft(self, request: DraftRequest, ids: list[int], owner: int | None, deadline: float) -> Any:
        return await super().draft(request, ids[BEFORE:], owner, deadline)

    async def look_ahead(
        self, request: DraftRequest, ids: list[int], owner: int, ahead: Ahead, deadline: float
    ) -> None:
        output, seed = ids[len(PROMPT) :], request.sampling.seed
        for place in range(len(ahead.drafted) + 1):
            bonus = place == len(ahead.drafted)
            stream = noise.DRAW if bonus else noise.RESIDUAL
            likely = self._ranked([*output, *ahead.drafted[:place]], seed, stream)
            ahead.likely.append([i for i in likely if bonus or i != ahead.drafted[place]])
        ahead.begin(DEPTH - len(output) - 1, frozenset())
        for branch in ahead.branches:
            while not branch.done:
                token_id, top = self._one([*output, *ahead.drafted[: branch.at], *branch.tokens], seed)
                if token_id >= 3:
                    break
                branch.q.append(top)
                branch.add(token_id, frozenset())


def simulate(kind: type[Auto], parts: dict[str, int]) -> tuple[torch.Tensor, Gateway]:
    """How often each sequence of three tokens came, int64 [V ** 3]; `parts`: which drafts were verified ahead."""
    gateway = Gateway(models())
    engine: Any = Late(gateway.both)
    lookahead = Lookahead(engine, Counts())  # type: ignore[arg-type]
    auto = kind([Shortened()], ModelDrafter(engine, lookahead), None, lambda: 0.0)
    foresight = Foresight(auto, lookahead, 10**6)
    sessions = [Session[Memory](str(seed), None, {}, list(PROMPT), latest_round=0) for seed in range(RUNS)]
    sent: dict[int, dict[tuple[int, ...], Candidate]] = {}

    async def round_of(seed: int, came: list[int]) -> tuple[Candidate, bool]:
        session = sessions[seed]
        most = min(MAX_GAMMA, DEPTH - (len(session.ids) - len(PROMPT)) - 1)
        most = most if len(session.ids) > len(PROMPT) else 1  # so that most tokens come of drafts that were told
        # What a token costs differs from run to run, so that drafts of every make and length occur.
        verify = [1.0 + (0.02, 0.12, 0.3)[seed % 3] * count for count in range(most + 1)]
        told = sent.pop(seed, {}).get(tuple(came))
        changes = {
            "draft_tokens": most, "max_tokens": most + 1, "verify_seconds": verify,
            "sampling": _REQUEST.sampling.model_copy(update={"seed": seed}),
            "verifying": told.token_ids if told is not None else None,
        }  # fmt: skip
        asked = Asked(_REQUEST.model_copy(update=changes), session, session.settle("all"), 0.0)
        lookahead.settle(asked)
        chosen = await auto.draft(asked)
        drafted = chosen.drafted.candidates[0] if chosen.drafted.candidates else NONE
        if told is not None:
            assert (drafted.token_ids, drafted.q) == (told.token_ids, told.q)
            name = "+".join(part.source for part in chosen.parts)
            parts[name] = parts.get(name, 0) + 1
        planned = chosen.planned - chosen.extended
        lookahead.begin(asked, drafted.token_ids, planned, planned, chosen.drafted.places)
        return drafted, told is not None

    async def run() -> None:
        came: dict[int, list[int]] = {}
        while alive := [seed for seed in range(RUNS) if len(sessions[seed].ids) < len(PROMPT) + TOKENS]:
            found = [await round_of(seed, came.get(seed, [])) for seed in alive]
            await asyncio.gather(*lookahead._tasks)
            for seed in alive:
                told = await foresight.alternatives(sessions[seed], 0, 0.0)
                alternatives = [one.alternative for one in told]
                sent[seed] = {tuple(one.token_ids): one.candidate for one in alternatives}
            texts = [sessions[seed].ids[len(PROMPT) :] for seed in alive]
            ahead = {seed for seed, (_, foreseen) in zip(alive, found, strict=True) if foreseen}
            verdicts = gateway.settle(alive, texts, [drafted for drafted, _ in found], ahead)
            for seed, emitted in zip(alive, verdicts, strict=True):
                came[seed] = emitted
                gateway.discarded += bool(sent[seed]) and tuple(emitted) not in sent[seed]
                sessions[seed].emit(emitted)

    asyncio.run(run())
    cells = [node_of(s.ids[len(PROMPT) : len(PROMPT) + TOKENS]) - node_of([0] * TOKENS) for s in sessions]
    return torch.bincount(torch.tensor(cells), minlength=VOCABULARY**TOKENS), gateway


@pytest.fixture(autouse=True)
def nearly_all_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookahead_module, "_FIRST_OUTCOMES", 12)
    monkeypatch.setattr(lookahead_module, "_LEAST_CHANCE", 0.0)
    monkeypatch.setattr(lookahead_module, "_smoothed", lambda old, new: None)


@pytest.mark.slow
def test_verifications_ahead_of_what_auto_chooses_leave_the_targets_distribution() -> None:
    parts: dict[str, int] = {}
    counts, gateway = simulate(Auto, parts)
    assert min(gateway.used, gateway.discarded) > RUNS // 20, (gateway.used, gateway.discarded)
    assert {"lookup", "cache"} <= set(parts), parts
    assert g_test(counts, gateway.both.exact_joint()) > FAR
    assert g_test(pairs(counts), pairs(gateway.both.exact_joint())) > FAR
