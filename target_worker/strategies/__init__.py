"""Verification strategies: pure functions on tensors from drafted chains and the target's side to what is accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.messages import MAX_CANDIDATES
from protocol.messages import Strategy as StrategyName
from target_worker.strategies import deterministic, greedy, threshold
from target_worker.strategies.drafts import Drafts, Outcome, Target


@dataclass(frozen=True, slots=True)
class Strategy:
    """`verify` judges B chains at once. `lossless`: the output keeps the target's distribution. `rejection`: for the log."""

    verify: Callable[[Drafts, Target], Outcome]
    lossless: bool
    rejection: str
    needs_q: bool = False
    max_candidates: int = MAX_CANDIDATES


STRATEGIES: dict[StrategyName, Strategy] = {
    "deterministic": Strategy(deterministic.verify, True, "differs from the target's own draw"),
    "threshold": Strategy(threshold.verify, False, "p is below the threshold"),
    "greedy": Strategy(greedy.verify, False, "is not the target's top token"),
}
