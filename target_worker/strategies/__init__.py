"""Verification strategies: pure functions on tensors from drafted chains and the target's side to what is accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from basics.names import MAX_CANDIDATES
from basics.names import Strategy as StrategyName
from protocol.errors import Unsupported
from protocol.messages import Candidate
from protocol.temperature import GREEDY_TEMPERATURE
from target_worker.strategies import deterministic, greedy, probabilistic, threshold
from target_worker.strategies.drafts import Drafts, Outcome, Target


@dataclass(frozen=True, slots=True)
class Strategy:
    """`verify` judges B chains at once, one or several a request.

    `always_lossless`: what is emitted has the target's own distribution at every temperature. `rejection`: how the log
    words a rejection.
    """

    verify: Callable[[Drafts, Target], Outcome]
    always_lossless: bool
    rejection: str
    needs_q: bool = False
    max_candidates: int = MAX_CANDIDATES

    def lossless(self, temperature: float) -> bool:
        """Of greedy rows one token is left: no strategy can accept or emit another one."""
        return self.always_lossless or temperature < GREEDY_TEMPERATURE


STRATEGIES: dict[StrategyName, Strategy] = {
    "deterministic": Strategy(deterministic.verify, True, "differs from the target's own draw"),
    # Judging several chains one by one and keeping the best would favour what was drafted often.
    "probabilistic": Strategy(probabilistic.verify, True, "p / q is below its uniform", needs_q=True, max_candidates=1),
    "threshold": Strategy(threshold.verify, False, "p is below the threshold"),
    "greedy": Strategy(greedy.verify, False, "is not the target's top token"),
}


def check_candidates(name: StrategyName, candidates: Sequence[Candidate], vocabulary: int) -> None:
    """Raises Unsupported or BadRequest, naming the field, where a strategy cannot judge these candidates exactly."""
    strategy = STRATEGIES[name]
    if len(candidates) > strategy.max_candidates:
        raise Unsupported(f"num_candidates: strategy {name} takes {strategy.max_candidates} at most", "candidates")
    if strategy.needs_q:
        for i, candidate in enumerate(candidates):
            probabilistic.check_q(candidate, vocabulary, f"candidates.{i}")
