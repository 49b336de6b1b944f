"""What becomes of a round: the chain that is kept, what is emitted of it, and the decisions on each drafted token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from protocol.messages import TopK
from target_worker.strategies import STRATEGIES
from target_worker.strategies.drafts import Judgement
from target_worker.strategies.verdicts import Verdict, cut_after_stop, decisions, keep_longest, verdicts
from tests.target_worker.strategies.helpers import chain_of, target_of


def verdict_of(num_accepted: list[int], tokens: list[list[int]], logits: list[list[float]]) -> Verdict:
    outcome = Judgement(torch.tensor(num_accepted), torch.zeros(len(tokens), dtype=torch.int64))
    return verdicts(chain_of(tokens), target_of(logits), outcome, [len(tokens)])[0]


def test_the_longest_prefix_wins_then_the_likelier_then_the_first() -> None:
    logits = [[0.0, 1.0, 2.0, 2.0], [0.0] * 4, [0.0] * 4]
    assert verdict_of([0, 2, 1], [[1, 1], [1, 2], [3, 3]], logits).candidate == 1
    assert verdict_of([1, 1, 0], [[1, 0], [2, 0], [3]], logits).candidate == 1
    assert verdict_of([1, 1, 1], [[1, 0], [2, 0], [3]], logits).candidate == 1
    assert verdict_of([0, 0], [[1], []], logits) == Verdict(0, 0, [0])


def test_many_requests_at_once_have_verdicts_of_their_own() -> None:
    target = target_of([[0.0, 9.0]] * 3, temperature=0.0)
    drafts = chain_of([[0], [1, 1], [], [1]])
    found = verdicts(drafts, target, STRATEGIES["deterministic"].verify(drafts, target), [2, 1, 1])
    assert [v.candidate for v in found] == [1, 0, 0]
    assert [v.token_ids for v in found] == [[1, 1, 1], [1], [1, 1]]


@pytest.mark.parametrize(
    ("tokens", "accepted", "most", "expected"),
    [
        ([1, 2, 3], 2, 9, ([1, 2, 3], 2, None, None)),
        ([1, 7, 3], 2, 9, ([1, 7], 2, "stop_token", 7)),
        ([7, 2, 3], 2, 9, ([7], 1, "stop_token", 7)),
        ([1, 2, 7], 2, 9, ([1, 2, 7], 2, "stop_token", 7)),
        ([1, 2, 3], 2, 2, ([1, 2], 2, "length", None)),
        ([1, 2, 3], 2, 1, ([1], 1, "length", None)),
        ([1, 2, 3], 2, 3, ([1, 2, 3], 2, "length", None)),
        ([1, 2, 7], 2, 2, ([1, 2], 2, "length", None)),
        ([1, 7, 3], 2, 2, ([1, 7], 2, "stop_token", 7)),
        ([8], 0, 1, ([8], 0, "stop_token", 8)),
    ],
)
def test_cutting_after_a_stop(tokens: list[int], accepted: int, most: int, expected: tuple[Any, ...]) -> None:
    cut = cut_after_stop(tokens, accepted, {7, 8}, most)
    assert (cut.token_ids, cut.num_accepted, cut.stop_reason, cut.stop_token_id) == expected


def test_decisions_say_why() -> None:
    """The target's own draws are 3, 1, 2: what was drafted, what takes a rejected token's place, and what ends it."""
    target = target_of([[0.0, 0.0, 0.0, 9.0], [0.0, 9.0, 0.0, 0.0], [0.0, 0.0, 9.0, 0.0]], temperature=0.0)
    drafts = chain_of([[3, 0], [3, 1], [0, 1], []])
    outcome = STRATEGIES["deterministic"].verify(drafts, target)

    def log(chain: int, *stops: int) -> list[tuple[int, int, bool, str, int | None]]:
        found = decisions(drafts, target, outcome, chain, "differs", stops)
        return [(entry.drafted, entry.own, entry.accepted, entry.reason, entry.instead) for entry in found]

    accepted, rejected = (3, 3, True, "accepted", None), (0, 1, False, "differs", 1)
    assert log(0) == [accepted, rejected]
    assert log(0, 1) == [accepted, rejected], "the stop token comes in its place"
    assert log(1) == log(1, 1) == [accepted, (1, 1, True, "accepted", None)]
    assert log(1, 3) == [accepted, (1, 1, False, "after a stop token", None)]
    assert log(0, 3) == [accepted, (0, 1, False, "after a stop token", None)]
    assert log(2) == log(2, 3) == [(0, 3, False, "differs", 3), (1, 1, False, "after a rejected token", None)]
    assert log(3) == []


def test_decisions_show_what_was_drawn_from_the_residual() -> None:
    """A token that is certain to be drafted and impossible for the target: what comes instead is no own draw."""
    differing = 0
    for seed in range(20):
        target = target_of([[0.0, 0.5, 1.0, -math.inf]] * 2, seed)
        drafts = chain_of([[3]], [[TopK(token_ids=[3], logprobs=[0.0])]])
        outcome = STRATEGIES["probabilistic"].verify(drafts, target)
        (entry,) = decisions(drafts, target, outcome, 0, STRATEGIES["probabilistic"].rejection)
        assert (entry.p, entry.q, entry.accepted, entry.reason) == (0.0, 1.0, False, "p / q is below its uniform")
        assert (entry.own, entry.instead) == (int(target.own[0]), int(outcome.next_token[0]))
        differing += entry.own != entry.instead
    assert differing


def test_the_longest_prefix_is_kept() -> None:
    chains = [[1, 2], [1, 3], [4, 5]]
    assert keep_longest(chains, [1, 2, 1]) == 1
    assert keep_longest(chains, [1, 1, 0]) == 0, "equal prefixes: the lowest index"
    assert keep_longest(chains, [0, 2, 2], lambda chain, length: float(chain)) == 2, "the likelier one"
    assert keep_longest(chains, [1, 1, 1], lambda chain, length: float(chain == 2)) == 2
