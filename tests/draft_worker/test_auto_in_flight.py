"""Under `probabilistic`, verifications ahead of what `auto` would draft leave the target's distribution as it is.

And versions that break the rules of docs/exactness.md are noticed.
"""

from __future__ import annotations

import pytest
import torch

from draft_worker import lookahead as lookahead_module
from engines.sampling.draw import draw
from protocol.messages import Candidate
from tests.draft_worker.flights_simulator import RUNS, Gateway, likelihood, models, node_of, simulate
from tests.draft_worker.test_lookahead_distribution import FAR

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def nearly_all_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookahead_module, "_FIRST_OUTCOMES", 12)
    monkeypatch.setattr(lookahead_module, "_LEAST_CHANCE", 0.0)
    monkeypatch.setattr(lookahead_module, "_smoothed", lambda old, new: None)


def test_verifications_ahead_of_what_auto_chooses_leave_the_targets_distribution() -> None:
    gateway = Gateway(models())
    counts = simulate(gateway)
    assert min(gateway.used, gateway.ordinary, gateway.discarded) > RUNS, "more than one of each in a generation"
    assert likelihood(counts, gateway.both) > FAR


class PicksByTheTargetsDraw(Gateway):
    """Broken: what was sent ahead is used if the target would draw its first token; else there is no draft."""

    def wanted(self, seed: int, output: list[int], told: Candidate | None) -> bool:
        if told is None:
            return True
        distribution = self.both.target.rows(torch.tensor([node_of(output)]))
        return bool(draw(distribution, [self.rows[seed][len(output)]]) == told.token_ids[0])


class PicksByTheVerdict(Gateway):
    """Broken: a verdict on what was sent ahead is used if its first token pleases; else it is asked for again, without
    a draft."""

    def judge(
        self, alive: list[int], texts: list[list[int]], drafts: list[Candidate], ahead: set[int]
    ) -> list[list[int]]:
        found = super().judge(alive, texts, drafts, ahead)
        again = super().judge(alive, texts, [Candidate(token_ids=[], logprobs=[], q=[]) for _ in alive], set())
        return [
            other if seed in ahead and emitted[0] == 2 else emitted
            for seed, emitted, other in zip(alive, found, again, strict=True)
        ]


class ForgetsWhatWasRejected(Gateway):
    """Broken: after a rejection ahead the next token comes from all of p, that which was rejected not excluded."""

    def judge(
        self, alive: list[int], texts: list[list[int]], drafts: list[Candidate], ahead: set[int]
    ) -> list[list[int]]:
        found = super().judge(alive, texts, drafts, ahead)
        ends = [[*output, *emitted[:-1]] for output, emitted in zip(texts, found, strict=True)]
        distribution = self.both.target.rows(torch.tensor([node_of(end) for end in ends]))
        own = draw(distribution, [self.rows[seed][len(end)] for seed, end in zip(alive, ends, strict=True)]).tolist()
        return [
            [*emitted[:-1], token_id] if seed in ahead and len(emitted) <= len(draft.token_ids) else emitted
            for seed, emitted, draft, token_id in zip(alive, found, drafts, own, strict=True)
        ]


@pytest.mark.parametrize("broken", [PicksByTheTargetsDraw, PicksByTheVerdict, ForgetsWhatWasRejected])
def test_a_gateway_that_breaks_the_rules_is_noticed(broken: type[Gateway]) -> None:
    gateway = broken(models())
    assert likelihood(simulate(gateway), gateway.both) < FAR
