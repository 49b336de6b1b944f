"""Under `probabilistic` the joint distribution of three tokens is the target's, whatever `auto` mixes.

And a choice that looks at noise to come is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from config.workers import DraftWorkerConfig
from draft_worker.auto import Auto, Chosen
from draft_worker.drafter import Asked, Copy, Means, Memory
from draft_worker.drafters.lookup import LookupDrafter
from draft_worker.engine import Drafted
from engines.sampling import noise
from engines.sampling.draw import draw, draw_keyed
from protocol.messages import Candidate, DraftPart, DraftRequest, DraftTimings, TopK
from target_worker.strategies import STRATEGIES
from target_worker.strategies.drafts import DraftDistributions, Drafts, Target
from tests.target_worker.strategies import simulator
from tests.target_worker.strategies.simulator import (
    DEPTH,
    MAX_GAMMA,
    TOKENS,
    VOCABULARY,
    Models,
    g_test,
    models,
)
from worker.session import Session

RUNS = 3_000
FAR = 1e-4
TOP_K = 3
# Most pairs of tokens occur more than once, so that lookup has something to copy.
PROMPT = [0, 1, 2, 3, 4, 0, 2, 4, 1, 3, 0, 3, 1, 4, 2, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 0, 1, 3, 2, 1, 0, 4, 3, 2, 0]
_REQUEST = DraftRequest.model_validate_json(
    '{"session_id": "s", "round": 0, "context": {"start": 0, "token_ids": [1], "prefix_hash": "e4a6a0577479b2b4"},'
    ' "num_prompt_tokens": 1, "max_tokens": 9, "sampling": {"seed": 1}, "draft_tokens": 3, "want_q": true}'
)


def node_of(output: Sequence[int]) -> int:
    node = 0
    for token_id in output:
        node = node * VOCABULARY + 1 + token_id
    return node


class Model:
    """Draws from the simulator's draft model with the noise of the given run."""

    source = "model"

    def __init__(self, both: Models) -> None:
        q = simulator.sent_q(both.draft)
        self._draft, self._ids, self._probabilities = both.draft, q.token_ids.tolist(), q.probabilities.log().tolist()
        self.seed = 0

    def prepared(self, asked: Asked) -> int:
        return 0

    async def go_on(self, asked: Asked, ahead: list[int], tokens: int) -> Drafted:
        output = [*asked.ids[len(PROMPT) :], *ahead]
        drawn: list[int] = []
        q: list[TopK] = []
        for _ in range(tokens):
            node = node_of([*output, *drawn])
            position = torch.tensor([simulator.PROMPT + len(output) + len(drawn)])
            keys = noise.row_keys(torch.tensor([self.seed]), noise.DRAW, position)
            drawn.append(int(draw_keyed(self._draft.rows(torch.tensor([node])), keys)))
            entries = [entry for entry in zip(self._ids[node], self._probabilities[node], strict=True) if entry[0] >= 0]
            q.append(TopK(token_ids=[i for i, _ in entries], logprobs=[logprob for _, logprob in entries]))
        timings = DraftTimings(queue_ms=0.0, forward_ms=0.0, sample_ms=0.0, total_ms=0.0)
        return Drafted([Candidate(token_ids=drawn, logprobs=[0.0] * tokens, q=q)], 0, timings)


class Shortened:
    """Lookup, whose copies after some tokens are one token long, so that the model goes on."""

    source = "lookup"

    def __init__(self) -> None:
        lookup = LookupDrafter.of(Means(DraftWorkerConfig()))
        assert lookup is not None
        self._lookup = lookup

    def copy(self, asked: Asked, ahead: list[int]) -> Copy | None:
        copy = self._lookup.copy(asked, ahead)
        if copy is None or asked.ids[-1] > 2:
            return copy
        return Copy(copy.token_ids[:1], copy.match)


class Peeking(Auto):
    """Broken: it lets the model draw, and sends the copy for certain where the two agree."""

    async def draft(self, asked: Asked) -> Chosen:
        copies = self.proposals(asked, [])
        assert self._model is not None
        drawn = await self._model.go_on(asked, [], 1)
        copied = [[top] for one in copies for top in one.token_ids[:1]]
        if drawn.candidates[0].token_ids in copied:
            (token_id,) = drawn.candidates[0].token_ids
            certain = Candidate(token_ids=[token_id], logprobs=[0.0], q=[TopK(token_ids=[token_id], logprobs=[0.0])])
            drawn = Drafted([certain], 0, drawn.timings)
        return Chosen([DraftPart(source="model", tokens=1)], drawn, 1)


def simulate(kind: type[Auto], runs: int, both: Models) -> tuple[torch.Tensor, dict[str, int]]:
    """How often each sequence of three tokens came, int64 [V ** 3], and how many drafts had which parts."""
    model: Any = Model(both)
    auto = kind([Shortened()], model, None, lambda: 0.0)
    sessions = [Session[Memory](str(seed), None, {}, list(PROMPT)) for seed in range(runs)]
    grid = [simulator._rows(seed) for seed in range(runs)]
    parts: dict[str, int] = {}

    async def drafts_of(alive: list[int]) -> list[Candidate]:
        found = []
        for run in alive:
            model.seed, ids = run, sessions[run].ids
            most = min(MAX_GAMMA, DEPTH - (len(ids) - len(PROMPT)) - 1)
            # What a token costs differs from run to run, so that drafts of every make and length occur.
            verify = [1.0 + (0.02, 0.12, 0.3)[run % 3] * count for count in range(most + 1)]
            request = _REQUEST.model_copy(update={"draft_tokens": most, "verify_seconds": verify})
            chosen = await auto.draft(Asked(request, sessions[run], 0, 0.0))
            name = "+".join(part.source for part in chosen.parts) or "none"
            parts[name] = parts.get(name, 0) + 1
            found.append(chosen.drafted.candidates[0] if chosen.drafted.candidates else Candidate(token_ids=[], q=[]))
        return found

    while alive := [run for run in range(runs) if len(sessions[run].ids) < len(PROMPT) + TOKENS]:
        candidates = asyncio.run(drafts_of(alive))
        tokens = torch.full((len(alive), MAX_GAMMA), -1)
        q_ids = torch.full((len(alive), MAX_GAMMA, TOP_K), -1)
        q = torch.zeros((len(alive), MAX_GAMMA, TOP_K), dtype=torch.float64)
        nodes, rows = [], []
        for row, (run, candidate) in enumerate(zip(alive, candidates, strict=True)):
            output = sessions[run].ids[len(PROMPT) :]
            for place, token_id in enumerate(candidate.token_ids):
                assert candidate.q is not None
                top = candidate.q[place]
                tokens[row, place] = token_id
                q_ids[row, place, : len(top.token_ids)] = torch.tensor(top.token_ids)
                q[row, place, : len(top.token_ids)] = torch.tensor(top.logprobs, dtype=torch.float64).exp()
            for place in range(MAX_GAMMA + 1):
                drafted = [*output, *candidate.token_ids][: len(output) + place]
                nodes.append(node_of(drafted) if len(drafted) == len(output) + place else 0)
                rows.append(grid[run][min(len(output) + place, DEPTH)])
        gamma = torch.tensor([len(candidate.token_ids) for candidate in candidates])
        distribution = both.target.rows(torch.tensor(nodes))
        index = torch.arange(len(rows)).view(len(alive), MAX_GAMMA + 1)
        asked = Drafts(tokens, gamma, index, DraftDistributions(q_ids, q))
        outcome = STRATEGIES["probabilistic"].verify(asked, Target(distribution, rows, draw(distribution, rows)))
        ends = zip(outcome.num_accepted.tolist(), outcome.next_token.tolist(), strict=True)
        for run, candidate, (accepted, own) in zip(alive, candidates, ends, strict=True):
            sessions[run].ids += [*candidate.token_ids[:accepted], own]
    cells = [node_of(s.ids[len(PROMPT) : len(PROMPT) + TOKENS]) - node_of([0] * TOKENS) for s in sessions]
    return torch.bincount(torch.tensor(cells), minlength=VOCABULARY**TOKENS), parts


def test_mixed_drafts_leave_the_targets_distribution() -> None:
    both = models()
    counts, parts = simulate(Auto, RUNS, both)
    for made in ("lookup", "model", "lookup+model", "model+lookup"):
        assert parts.get(made, 0) > RUNS // 150, parts
    assert g_test(counts, both.exact_joint()) > FAR


@pytest.mark.slow
@pytest.mark.parametrize("broken", [Peeking])
def test_a_choice_that_looks_at_noise_to_come_is_noticed(broken: type[Auto]) -> None:
    both = models()
    counts, _ = simulate(broken, RUNS, both)
    assert g_test(counts, both.exact_joint()) < FAR
