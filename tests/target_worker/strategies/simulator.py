"""Many generations of three tokens at once, through the production functions, on models small enough to enumerate.

A model is a table of logits by prefix: node 0 is the prompt, node V·n + 1 + t is node n after token t.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from basics.names import Strategy
from engines.sampling import noise
from engines.sampling.distribution import Distribution
from engines.sampling.draw import draw, draw_keyed
from engines.sampling.process import process
from engines.sampling.rows import SamplingRow
from protocol.messages import Candidate
from target_worker.strategies import STRATEGIES
from target_worker.strategies.drafts import DraftDistributions, Drafts, Target, pad_drafts
from target_worker.strategies.probabilistic import pad_q
from tests.engines.sampling.helpers import sampling_row

VOCABULARY = 5
TOKENS = 3
MAX_GAMMA = 3
PROMPT = 2
DEPTH = TOKENS + MAX_GAMMA
NODES = sum(VOCABULARY**depth for depth in range(DEPTH + 1))
INNER = sum(VOCABULARY**depth for depth in range(TOKENS))  # prefixes of the three tokens


@dataclass(frozen=True)
class Models:
    """Processed distributions of every prefix; the draft's are truncated, as they are sent."""

    target: Distribution
    draft: Distribution

    def total_variation(self) -> Tensor:
        """Between target and draft at each prefix of the three tokens, float64 [INNER]."""
        p, q = (d.rows(torch.arange(INNER)).logprobs().exp() for d in (self.target, self.draft))
        return (p - q).abs().sum(-1) / 2

    def exact_joint(self) -> Tensor:
        """Probabilities of all sequences of three tokens, float64 [V ** 3]."""
        p = self.target.logprobs().exp()
        joint, nodes = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
        for _ in range(TOKENS):
            joint = (joint[:, None] * p[nodes]).flatten()
            nodes = (nodes[:, None] * VOCABULARY + 1 + torch.arange(VOCABULARY)).flatten()
        return joint


@cache
def models(top_p: float = 0.93, draft_top_k: int = 3) -> Models:
    generator = torch.Generator().manual_seed(1384)
    target_logits = torch.randn(NODES, VOCABULARY, generator=generator) * 1.2
    # The draft's favourites are not the target's: far off, but seldom outside the support.
    draft_logits = target_logits.roll(1, dims=-1) * 0.7 + target_logits * 0.25
    parameters: dict[str, Any] = {"temperature": 0.9, "top_p": top_p}
    target = process(target_logits, [sampling_row(**parameters)] * NODES)
    draft = process(draft_logits, [sampling_row(**parameters)] * NODES)
    return Models(target, draft.truncate(draft_top_k))


def sent_q(distribution: Distribution) -> DraftDistributions:
    """The entries of sparse distributions of one part, as float64 [r, K]."""
    (part,) = distribution.parts
    assert part.token_ids is not None
    probabilities = torch.empty(part.logits.shape, dtype=torch.float64)
    token_ids = torch.empty_like(part.token_ids)
    probabilities[part.rows], token_ids[part.rows] = distribution.part_logprobs(part).exp(), part.token_ids
    return DraftDistributions(token_ids.masked_fill(probabilities == 0, -1), probabilities)


@dataclass(frozen=True)
class Simulation:
    """`sequences` int64 [B, 3] and how many chains drafted some position again after a rejection before it."""

    sequences: Tensor
    drafted_again: int
    acceptance_rate: float

    def counts(self) -> Tensor:
        index = self.sequences[:, 0]
        for place in range(1, TOKENS):
            index = index * VOCABULARY + self.sequences[:, place]
        return torch.bincount(index, minlength=VOCABULARY**TOKENS)


def simulate(strategy: Strategy, runs: int, both: Models, first_seed: int = 0) -> Simulation:
    """`runs` generations with seeds of their own, in rounds of γ = 0, 1, 2 or 3 by turns."""
    seeds = torch.arange(first_seed, first_seed + runs)
    grid = [_rows(seed) for seed in seeds.tolist()]
    sequences = torch.full((runs, TOKENS + MAX_GAMMA + 1), -1)
    length, node, reach = (torch.zeros(runs, dtype=torch.int64) for _ in range(3))
    drafted_again = accepted = drafted = rounds = 0
    while len(alive := torch.nonzero(length < TOKENS).flatten()):
        gamma = (seeds[alive] * 7 + rounds * 3 + (seeds[alive] >> 4)) % (MAX_GAMMA + 1)
        gamma = torch.minimum(gamma, DEPTH - length[alive] - 1)
        nodes = [node[alive]]
        tokens = []
        for i in range(MAX_GAMMA):
            keys = noise.row_keys(seeds[alive], noise.DRAW, PROMPT + length[alive] + i)
            tokens.append(draw_keyed(both.draft.rows(nodes[-1] % NODES), keys))
            nodes.append(torch.where(i < gamma, nodes[-1] * VOCABULARY + 1 + tokens[-1], 0))
        path = torch.stack(nodes, dim=1)
        rows = [
            grid[run][done + i]
            for run, done in zip(alive.tolist(), length[alive].tolist(), strict=True)
            for i in range(MAX_GAMMA + 1)
        ]
        distribution = both.target.rows(path.flatten())
        q = sent_q(both.draft.rows(path[:, :-1].flatten()))
        shape = (len(alive), MAX_GAMMA, -1)
        drafts = Drafts(
            torch.stack(tokens, dim=1).masked_fill(torch.arange(MAX_GAMMA) >= gamma[:, None], -1),
            gamma,
            torch.arange(len(rows)).view(len(alive), MAX_GAMMA + 1),
            DraftDistributions(q.token_ids.view(shape), q.probabilities.view(shape)),
        )
        outcome = STRATEGIES[strategy].verify(drafts, Target(distribution, rows, draw(distribution, rows)))
        emitted = torch.cat([drafts.token_ids, torch.full((len(alive), 1), -1)], dim=1)
        emitted.scatter_(1, outcome.num_accepted[:, None], outcome.next_token[:, None])
        for place in range(MAX_GAMMA + 1):
            here = torch.nonzero(place <= outcome.num_accepted).flatten()
            sequences[alive[here], length[alive[here]]] = emitted[here, place]
            node[alive[here]] = node[alive[here]] * VOCABULARY + 1 + emitted[here, place]
            length[alive[here]] += 1
        drafted_again += int(((reach[alive] > length[alive] - outcome.num_accepted - 1) & (gamma > 0)).sum())
        reach[alive] = torch.maximum(reach[alive], length[alive] - outcome.num_accepted - 1 + gamma)
        accepted, drafted = accepted + int(outcome.num_accepted.sum()), drafted + int(gamma.sum())
        rounds += 1
    return Simulation(sequences[:, :TOKENS], drafted_again, accepted / max(drafted, 1))


PLAIN = sampling_row().sampling
HISTORIES = [(0,) * (PROMPT + depth) for depth in range(DEPTH + 1)]


def _rows(seed: int) -> list[SamplingRow]:
    """The rows of one generation. Their parameters went into the tables: only the noise is left."""
    return [SamplingRow(PLAIN, seed, len(history), history, PROMPT) for history in HISTORIES]


def g_test(counts: Tensor, expected: Tensor) -> float:
    """p-value of the G-test; cells under 5 expected draws are pooled. A draw of the impossible gives 0."""
    observed, expected = counts.double(), expected * counts.sum()
    if bool((observed[expected == 0] > 0).any()):
        return 0.0
    rare = expected < 5
    observed = torch.cat([observed[~rare], observed[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    some = expected > 0
    observed, expected = observed[some], expected[some]
    g = 2 * torch.xlogy(observed, observed / expected).sum()
    return float(stats.chi2.sf(float(g), len(observed) - 1))


def verified(
    distribution: Distribution, rows: list[SamplingRow], drafts: list[Candidate], width: int
) -> list[tuple[int, list[int]]]:
    """What `probabilistic` makes of drafts: how many tokens of each are right, and the tokens emitted.

    Of the target's distribution and rows each draft has `width`, for its places and those it does not fill.
    """
    chains = [candidate.token_ids for candidate in drafts]
    places = [list(range(i * width, i * width + len(chain) + 1)) for i, chain in enumerate(chains)]
    asked = pad_drafts(chains, places, q=pad_q([candidate.q or [] for candidate in drafts]))
    outcome = STRATEGIES["probabilistic"].verify(asked, Target(distribution, rows, draw(distribution, rows)))
    ends = zip(outcome.num_accepted.tolist(), outcome.next_token.tolist(), strict=True)
    return [(accepted, [*chain[:accepted], own]) for chain, (accepted, own) in zip(chains, ends, strict=True)]
