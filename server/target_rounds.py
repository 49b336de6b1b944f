"""Who drives a request's rounds: the gateway, or a target that asks a draft worker itself."""

from __future__ import annotations

from protocol.messages import ModelInfo
from protocol.target_rounds import is_greedy, may_be_drafted_for
from server.rounds import GenerationRequest


def can_serve(request: GenerationRequest, info: ModelInfo) -> bool:
    """A target that only drives its own rounds draws above temperature 0 without the shared noise.

    Its text then has the right distribution, which is all that `probabilistic` promises; `deterministic` promises more.
    """
    if "gateway" in info.capabilities.rounds or is_greedy(request.sampling):
        return True
    return request.speculation.strategy == "probabilistic"


def target_drives(request: GenerationRequest, info: ModelInfo) -> bool:
    """Whether the target is to drive the rounds. One that offers both does so where that keeps every promise."""
    offered = info.capabilities
    if "target" not in offered.rounds:
        return False
    if "gateway" not in offered.rounds:
        return True
    speculation = request.speculation
    if not speculation.enabled or not may_be_drafted_for(request.sampling, request.grammar):
        return False
    # What only the gateway knows how to ask for.
    if speculation.num_candidates > 1 or speculation.draft_model or request.prediction or request.log_decisions:
        return False
    if is_greedy(request.sampling):
        return True
    return speculation.strategy == "probabilistic" and offered.target_rounds_sampled
