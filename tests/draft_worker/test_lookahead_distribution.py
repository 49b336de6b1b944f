"""Under `probabilistic` the joint distribution of three tokens is the target's, through hits, misses and parts.

And a use of what is prepared that looks at noise to come, or sends another q, is noticed.
"""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draft_worker import lookahead as lookahead_module
from draft_worker.drafter import Asked, Memory
from draft_worker.drafters.model import ModelDrafter
from draft_worker.engine import Drafted
from draft_worker.lookahead import Known, Lookahead
from draft_worker.outcomes import Ahead
from engines.sampling import noise
from protocol.messages import Candidate, DraftRequest, DraftTimings, TopK
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

RUNS = 2_000
FAR = 1e-4
PROMPT = list(range(simulator.PROMPT))
_REQUEST = DraftRequest.model_validate_json(
    '{"session_id": "s", "round": 0, "context": {"start": 0, "token_ids": [1], "prefix_hash": "e4a6a0577479b2b4"},'
    ' "num_prompt_tokens": 1, "max_tokens": 9, "sampling": {"seed": 1}, "draft_tokens": 3, "want_q": true,'
    ' "lookahead_tokens": 3}'
)
_TIMINGS = DraftTimings(queue_ms=0.0, forward_ms=0.0, sample_ms=0.0, total_ms=0.0)


def node_of(output: list[int]) -> int:
    node = 0
    for token_id in output:
        node = node * VOCABULARY + 1 + token_id
    return node


class Engine:
    """Draws from the simulator's draft model with the noise of the request's seed, now or ahead."""

    calls = 0

    def __init__(self, both: Models) -> None:
        self._q: Any = both.draft.logprobs().numpy()
        entries = both.draft.entries()
        self._tops = [TopK(token_ids=ids, logprobs=logprobs) for ids, logprobs in entries]
        places = torch.arange(DEPTH + 1) + simulator.PROMPT
        self.noise: dict[int, Any] = {}
        for stream in (noise.DRAW, noise.RESIDUAL):
            keys = noise.row_keys(torch.arange(RUNS).repeat_interleave(len(places)), stream, places.repeat(RUNS))
            hashed = noise.hash_ids(keys, torch.arange(VOCABULARY))
            self.noise[stream] = noise.gumbel_from_hash(hashed).view(RUNS, len(places), VOCABULARY).numpy()
        self.chains = False
        self.abreast = 1
        self.model: Any = SimpleNamespace(info=SimpleNamespace(step_seconds=[], vocabulary=None))

    def _ranked(self, output: list[int], seed: int, stream: int = noise.DRAW) -> list[int]:
        """The tokens that may follow, the one that the noise draws first."""
        perturbed = self._q[node_of(output)] + self.noise[stream][seed, len(output)]
        return [int(i) for i in (-perturbed).argsort(kind="stable") if perturbed[i] > -float("inf")]

    def _one(self, output: list[int], seed: int) -> tuple[int, TopK]:
        return self._ranked(output, seed)[0], self._tops[node_of(output)]

    async def draft(self, request: DraftRequest, ids: list[int], owner: int | None, deadline: float) -> Drafted:
        tokens, q = [], []
        for _ in range(request.draft_tokens):
            token_id, top = self._one([*ids[len(PROMPT) :], *tokens], request.sampling.seed)
            tokens.append(token_id)
            q.append(top)
        return Drafted([Candidate(token_ids=tokens, logprobs=[0.0] * len(tokens), q=q)], 0, _TIMINGS)

    async def look_ahead(
        self, request: DraftRequest, ids: list[int], owner: int, ahead: Ahead, deadline: float
    ) -> None:
        output, seed = ids[len(PROMPT) :], request.sampling.seed
        for place in range(len(ahead.drafted) + 1):
            bonus = place == len(ahead.drafted)
            stream = noise.DRAW if bonus else noise.RESIDUAL
            likely = self._ranked([*output, *ahead.drafted[:place]], seed, stream)
            likely += [token_id for token_id in range(VOCABULARY) if token_id not in likely]
            ahead.likely.append([i for i in likely if bonus or i != ahead.drafted[place]])
        ahead.begin(DEPTH - len(output) - 1, frozenset())
        for branch in ahead.branches:
            while not branch.done:
                token_id, top = self._one([*output, *ahead.drafted[: branch.at], *branch.tokens], seed)
                branch.q.append(top)
                branch.add(token_id, frozenset())
                if seed % 3 == 0:
                    break  # there was no time for more


class Counts:
    """In place of the worker's metrics."""

    def __init__(self) -> None:
        self.calls = {True: 0, False: 0}

    def foreseen(self, hit: bool) -> None:
        self.calls[hit] += 1

    def prepared(self, tokens: int) -> None:
        pass


class Picking(Lookahead):
    """Broken: a prepared draft is sent only if the noise alone would draw its first token, and else no draft."""

    def known(self, asked: Asked, ahead: list[int]) -> Known | None:
        known = super().known(asked, ahead)
        if known is None:
            return None
        engine: Any = self._engine
        there = engine.noise[noise.DRAW][asked.request.sampling.seed, len(asked.ids) - len(PROMPT)]
        return known if there.argmax() == known.token_ids[0] else Known([], [], ends=True, planned=0)


class Mistaken(Lookahead):
    """Broken: tokens are sent with another q than the one they were drawn from."""

    def known(self, asked: Asked, ahead: list[int]) -> Known | None:
        known = super().known(asked, ahead)
        if known is None:
            return None
        q = [self._other(token_id, top) for token_id, top in zip(known.token_ids, known.q, strict=True)]
        return Known(known.token_ids, q, known.ends, known.planned)

    def _other(self, token_id: int, top: TopK) -> TopK:
        rest = [other for other in top.token_ids if other != token_id]
        logprobs = [math.log(0.02), *[math.log(0.98 / len(rest))] * len(rest)] if rest else [0.0]
        return TopK(token_ids=[token_id, *rest], logprobs=logprobs)


def simulate(kind: type[Lookahead], both: Models) -> tuple[torch.Tensor, Counts, int]:
    """How often each sequence of three tokens came, int64 [V ** 3]; hits; drafts of which a part was prepared."""
    engine, counts, parts = Engine(both), Counts(), 0
    sessions = [Session[Memory](str(seed), None, {}, list(PROMPT)) for seed in range(RUNS)]
    grid = [simulator._rows(seed) for seed in range(RUNS)]

    async def run() -> None:
        nonlocal parts
        lookahead = kind(engine, counts)  # type: ignore[arg-type]
        model = ModelDrafter(engine, lookahead)  # type: ignore[arg-type]
        while alive := [run for run in range(RUNS) if len(sessions[run].ids) < len(PROMPT) + TOKENS]:
            drafts: list[Candidate] = []
            for seed in alive:
                session = sessions[seed]
                most = min(MAX_GAMMA, DEPTH - (len(session.ids) - len(PROMPT)) - 1)
                sampling = _REQUEST.sampling.model_copy(update={"seed": seed})
                request = _REQUEST.model_copy(update={"draft_tokens": most, "sampling": sampling})
                asked = Asked(request, session, session.settle("all"), 0.0)
                lookahead.settle(asked)
                drafted = await model.draft(asked)
                parts += 0 < drafted.prepared < most
                drafts += drafted.candidates
                lookahead.begin(asked, drafted.candidates[0].token_ids, most, most)
            await asyncio.gather(*lookahead._tasks)
            judge(alive, drafts)

    def judge(alive: list[int], drafts: list[Candidate]) -> None:
        width = MAX_GAMMA + 1
        nodes, rows = [], []
        for seed, candidate in zip(alive, drafts, strict=True):
            output = sessions[seed].ids[len(PROMPT) :]
            for place in range(width):
                there = [*output, *candidate.token_ids[:place]] if place <= len(candidate.token_ids) else []
                nodes.append(node_of(there))
                rows.append(grid[seed][min(len(output) + place, DEPTH)])
        distribution = both.target.rows(torch.tensor(nodes))
        for seed, (_, emitted) in zip(alive, verified(distribution, rows, drafts, width), strict=True):
            sessions[seed].emit(emitted)

    asyncio.run(run())
    cells = [node_of(s.ids[len(PROMPT) : len(PROMPT) + TOKENS]) - node_of([0] * TOKENS) for s in sessions]
    return torch.bincount(torch.tensor(cells), minlength=VOCABULARY**TOKENS), counts, parts


def pairs(joint: torch.Tensor) -> torch.Tensor:
    """Of the first two tokens: fewer cells, which show less of a bias, but it sooner."""
    return joint.view(-1, VOCABULARY).sum(-1)


@pytest.fixture(autouse=True)
def nearly_all_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookahead_module, "_FIRST_OUTCOMES", 12)
    monkeypatch.setattr(lookahead_module, "_LEAST_CHANCE", 0.0)


def test_prepared_drafts_leave_the_targets_distribution() -> None:
    both = models()
    counts, calls, parts = simulate(Lookahead, both)
    assert min(calls.calls[True], calls.calls[False], parts) > RUNS // 20, (calls.calls, parts)
    assert g_test(counts, both.exact_joint()) > FAR
    assert g_test(pairs(counts), pairs(both.exact_joint())) > FAR


@pytest.mark.slow
@pytest.mark.parametrize("broken", [Picking, Mistaken])
def test_a_use_of_them_that_breaks_the_rules_is_noticed(broken: type[Lookahead]) -> None:
    both = models()
    counts, _, _ = simulate(broken, both)
    assert g_test(pairs(counts), pairs(both.exact_joint())) < FAR
