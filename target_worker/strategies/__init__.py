"""Verification strategies: pure functions on tensors from drafted chains and the target's side to what is accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from basics.names import GREEDY_TEMPERATURE, MAX_CANDIDATES
from basics.names import Strategy as StrategyName
from protocol.errors import Unsupported
from protocol.messages import Candidate
from protocol.worker_info import StrategyFacts
from target_worker.strategies import deterministic, greedy, probabilistic, threshold
from target_worker.strategies.drafts import Drafts, Judgement, Target


@dataclass(frozen=True, slots=True)
class Strategy:
    """`verify` judges B chains at once, one or several a request. `rejection`: how the log words a rejection.

    The rest is what the target reports of it (protocol.worker_info.StrategyFacts). `emits_rejected`: a token that was
    rejected may come in its own place; an engine that sees only what is emitted can't distinguish the two.
    """

    verify: Callable[[Drafts, Target], Judgement]
    rejection: str
    always_lossless: bool = True
    same_text: bool = True
    draws: bool = True
    needs_q: bool = False
    max_candidates: int = MAX_CANDIDATES
    emits_rejected: bool = False

    def lossless(self, temperature: float) -> bool:
        """A greedy row has one token left: no strategy can accept or emit another one."""
        return self.always_lossless or temperature < GREEDY_TEMPERATURE

    def facts(self, name: StrategyName) -> StrategyFacts:
        return StrategyFacts(
            name=name,
            needs_q=self.needs_q,
            max_candidates=self.max_candidates,
            lossless=self.always_lossless,
            same_text=self.same_text,
            draws=self.draws,
        )


STRATEGIES: dict[StrategyName, Strategy] = {
    "deterministic": Strategy(deterministic.verify, "differs from the target's own draw"),
    # Judging several chains one by one and keeping the best would favour what was drafted often.
    "probabilistic": Strategy(
        probabilistic.verify, "p / q is below its uniform", same_text=False, needs_q=True, max_candidates=1
    ),
    "threshold": Strategy(
        threshold.verify, "p is below the threshold", always_lossless=False, same_text=False, emits_rejected=True
    ),
    "greedy": Strategy(greedy.verify, "is not the target's top token", always_lossless=False, draws=False),
}


def check_candidates(name: StrategyName, candidates: Sequence[Candidate], vocabulary: int) -> None:
    """Raises Unsupported or BadRequest, naming the field, if a strategy cannot judge these candidates exactly."""
    most = STRATEGIES[name].max_candidates
    if len(candidates) > most:
        raise Unsupported(f"num_candidates: strategy {name} takes {most} at most", "candidates")
    for i, candidate in enumerate(candidates):
        check_candidate(name, candidate, vocabulary, f"candidates.{i}")


def check_candidate(name: StrategyName, candidate: Candidate, vocabulary: int, field: str) -> None:
    """Raises BadRequest, naming what of `field`, if a strategy cannot judge this candidate exactly."""
    if STRATEGIES[name].needs_q:
        probabilistic.check_q(candidate, vocabulary, field)
