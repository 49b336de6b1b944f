"""Many generations under `probabilistic` whose verifications are nearly all sent ahead, as `auto` would draft them.

The real chooser, lookahead, foresight and strategy, on two models of three tokens that mostly agree: six tokens a
generation, so that a bias of what is verified ahead adds up. A model is a table of logits by prefix, as in
tests/target_worker/strategies/simulator.py.
"""

from __future__ import annotations

import asyncio
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from draft_worker.auto import Auto
from draft_worker.drafter import Asked, Memory
from draft_worker.drafters.model import ModelDrafter
from draft_worker.engine import Drafted
from draft_worker.foresight import Foresight
from draft_worker.lookahead import Lookahead
from draft_worker.outcomes import Ahead
from engines.sampling import noise
from engines.sampling.process import process
from engines.sampling.rows import SamplingRow
from protocol.messages import Candidate, DraftRequest, DraftTimings, TopK
from tests.draft_worker.test_auto_distribution import Shortened
from tests.draft_worker.test_lookahead_distribution import _REQUEST, Counts
from tests.engines.sampling.helpers import sampling_row
from tests.target_worker.strategies.simulator import Models, g_test, verified
from worker.session import Session

RUNS = 2_000
VOCABULARY = 3
TOKENS = 6
GAMMA = 3
DEPTH = TOKENS + GAMMA
NODES = sum(VOCABULARY**depth for depth in range(DEPTH + 1))
PROMPT = [0, 1, 2, 0, 0, 2, 1, 1, 0, 2, 2, 1, 0, 1, 1, 2, 0, 2]
"""Lookup copies from it; the models do not see it."""
NONE = Candidate(token_ids=[], logprobs=[], q=[])
_TIMINGS = DraftTimings(queue_ms=0.0, forward_ms=0.0, sample_ms=0.0, total_ms=0.0)


def node_of(output: list[int]) -> int:
    node = 0
    for token_id in output:
        node = node * VOCABULARY + 1 + token_id
    return node


@cache
def models() -> Models:
    """They differ by a fifth to a third of their mass at most places."""
    generator = torch.Generator().manual_seed(7)
    target = torch.randn(NODES, VOCABULARY, generator=generator)
    draft = 0.5 * target + 0.5 * target.roll(1, dims=-1)
    rows = [sampling_row(temperature=0.9)] * NODES
    return Models(process(target, rows), process(draft, rows).truncate(VOCABULARY))


class Engine:
    """Draws from the draft model with the noise of the request's seed. Ahead, every other generation has no time for
    what comes where the noise is greatest for token 2: how far a draft has grown then follows from noise that
    verification draws with again, as it may through the time that passes take."""

    calls = 0
    chains = False
    abreast = 1

    def __init__(self, both: Models) -> None:
        self._q: Any = both.draft.logprobs().numpy()
        self._tops = [TopK(token_ids=ids, logprobs=logprobs) for ids, logprobs in both.draft.entries()]
        self.model: Any = SimpleNamespace(info=SimpleNamespace(step_seconds=[], vocabulary=None))
        places = torch.arange(DEPTH + 1) + len(PROMPT)
        self.noise: dict[int, Any] = {}
        for stream in (noise.DRAW, noise.RESIDUAL):
            keys = noise.row_keys(torch.arange(RUNS).repeat_interleave(len(places)), stream, places.repeat(RUNS))
            hashed = noise.hash_ids(keys, torch.arange(VOCABULARY))
            self.noise[stream] = noise.gumbel_from_hash(hashed).view(RUNS, len(places), VOCABULARY).numpy()

    def _ranked(self, output: list[int], seed: int, stream: int = noise.DRAW) -> list[int]:
        perturbed = self._q[node_of(output)] + self.noise[stream][seed, len(output)]
        return [int(i) for i in (-perturbed).argsort(kind="stable")]

    async def draft(self, request: DraftRequest, ids: list[int], owner: int | None, deadline: float) -> Drafted:
        output, tokens, q = ids[len(PROMPT) :], [], []
        for _ in range(request.draft_tokens):
            q.append(self._tops[node_of([*output, *tokens])])
            tokens.append(self._ranked([*output, *tokens], request.sampling.seed)[0])
        return Drafted([Candidate(token_ids=tokens, logprobs=[0.0] * len(tokens), q=q)], 0, _TIMINGS)

    async def look_ahead(
        self, request: DraftRequest, ids: list[int], owner: int, ahead: Ahead, deadline: float
    ) -> None:
        output, seed = ids[len(PROMPT) :], request.sampling.seed
        for place in range(len(ahead.drafted) + 1):
            bonus = place == len(ahead.drafted)
            likely = self._ranked([*output, *ahead.drafted[:place]], seed, noise.DRAW if bonus else noise.RESIDUAL)
            ahead.likely.append([i for i in likely if bonus or i != ahead.drafted[place]])
        ahead.begin(DEPTH - len(output) - 1, frozenset())
        for branch in ahead.branches:
            while not branch.done:
                before = [*output, *ahead.drafted[: branch.at], *branch.tokens]
                if seed % 2 and self.noise[noise.DRAW][seed, len(before)].argmax() == 2:
                    break
                branch.q.append(self._tops[node_of(before)])
                branch.add(self._ranked(before, seed)[0], frozenset())


class Gateway:
    """Sends drafts, and what was told of the next ones, to the target."""

    def __init__(self, both: Models) -> None:
        self.both = both
        histories = [(0,) * (len(PROMPT) + depth) for depth in range(DEPTH + 1)]
        plain = sampling_row().sampling
        self.rows = [
            [SamplingRow(plain, seed, len(history), history, len(PROMPT)) for history in histories]
            for seed in range(RUNS)
        ]
        self.used = self.ordinary = self.discarded = 0

    def wanted(self, seed: int, output: list[int], told: Candidate | None) -> bool:
        """Whether the round has a draft. `told`: the one whose verification was sent ahead, if there is one."""
        return True

    def judge(
        self, alive: list[int], texts: list[list[int]], drafts: list[Candidate], ahead: set[int]
    ) -> list[list[int]]:
        """The tokens that each round brings; `ahead`: those whose verification was sent before the last verdict."""
        self.used += len(ahead)
        self.ordinary += len(alive) - len(ahead)
        width = GAMMA + 1
        nodes, rows = [], []
        for seed, output, candidate in zip(alive, texts, drafts, strict=True):
            for place in range(width):
                there = place <= len(candidate.token_ids)
                nodes.append(node_of([*output, *candidate.token_ids[:place]]) if there else 0)
                rows.append(self.rows[seed][min(len(output) + place, DEPTH)])
        distribution = self.both.target.rows(torch.tensor(nodes))
        return [emitted for _, emitted in verified(distribution, rows, drafts, width)]


def simulate(gateway: Gateway, kind: type[Auto] = Auto) -> Tensor:
    """How often each sequence came, int64 [V ** TOKENS]."""
    engine: Any = Engine(gateway.both)
    lookahead = Lookahead(engine, Counts())  # type: ignore[arg-type]
    auto = kind([Shortened()], ModelDrafter(engine, lookahead), None, lambda: 0.0)
    foresight = Foresight(auto, lookahead, 10**6)
    sessions = [Session[Memory](str(seed), None, {}, list(PROMPT), latest_round=0) for seed in range(RUNS)]
    sent: dict[int, dict[tuple[int, ...], Candidate]] = {}
    came: dict[int, list[int]] = {}

    async def round_of(seed: int) -> tuple[Candidate, bool]:
        session = sessions[seed]
        output = session.ids[len(PROMPT) :]
        most = min(GAMMA, DEPTH - len(output) - 1)
        told = sent.pop(seed, {}).get(tuple(came.get(seed, [])))
        # What a token costs differs from run to run, so that drafts of every make and length occur.
        verify = [1.0 + (0.02, 0.12, 0.3)[seed % 3] * count for count in range(most + 1)]
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
        if not gateway.wanted(seed, output, told):
            drafted = NONE
        planned = chosen.planned - chosen.extended
        lookahead.begin(asked, drafted.token_ids, planned, planned, chosen.drafted.places)
        return drafted, told is not None

    async def run() -> None:
        while alive := [seed for seed in range(RUNS) if len(sessions[seed].ids) < len(PROMPT) + TOKENS]:
            found = [await round_of(seed) for seed in alive]
            await asyncio.gather(*lookahead._tasks)
            for seed in alive:
                told = [one.alternative for one in await foresight.alternatives(sessions[seed], 0, 0.0)]
                sent[seed] = {tuple(one.token_ids): one.candidate for one in told}
            texts = [sessions[seed].ids[len(PROMPT) :] for seed in alive]
            ahead = {seed for seed, (_, foreseen) in zip(alive, found, strict=True) if foreseen}
            verdicts = gateway.judge(alive, texts, [drafted for drafted, _ in found], ahead)
            for seed, emitted in zip(alive, verdicts, strict=True):
                came[seed] = emitted
                gateway.discarded += bool(sent[seed]) and tuple(emitted) not in sent[seed]
                sessions[seed].emit(emitted)

    asyncio.run(run())
    ids = [session.ids[len(PROMPT) : len(PROMPT) + TOKENS] for session in sessions]
    cells = [node_of(text) - node_of([0] * TOKENS) for text in ids]
    return torch.bincount(torch.tensor(cells), minlength=VOCABULARY**TOKENS)


def exact_joint(both: Models) -> Tensor:
    """Probabilities of all sequences, float64 [V ** TOKENS]."""
    p = both.target.logprobs().exp()
    joint, nodes = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    for _ in range(TOKENS):
        joint = (joint[:, None] * p[nodes]).flatten()
        nodes = (nodes[:, None] * VOCABULARY + 1 + torch.arange(VOCABULARY)).flatten()
    return joint


def likelihood(counts: Tensor, both: Models) -> float:
    """The least p-value of G-tests on the first one to five tokens, and on the last three: few cells show a bias that
    all have in common, many one that follows from the text."""
    joint = exact_joint(both)
    first = [(VOCABULARY**length, -1) for length in range(1, TOKENS)]
    found = [g_test(counts.view(shape).sum(1), joint.view(shape).sum(1)) for shape in first]
    last = (-1, VOCABULARY**3)
    return min([*found, g_test(counts.view(last).sum(0), joint.view(last).sum(0))])
