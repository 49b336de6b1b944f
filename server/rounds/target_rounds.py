"""Which targets can serve a request, and who drives its rounds: the gateway, or a target that asks a draft worker."""

from __future__ import annotations

from basics.names import Strategy
from protocol.target_rounds import is_greedy, may_be_drafted_for
from protocol.worker_info import ModelInfo
from server.backend import GenerationRequest
from server.errors import ApiError, InvalidRequest, NotSupported


def fault(request: GenerationRequest, info: ModelInfo) -> ApiError | None:
    """Why this target can't serve the request; None if it can."""
    offered, speculation = info.capabilities, request.speculation
    if speculation.enabled and speculation.strategy not in offered.strategies:
        known = ", ".join(offered.strategies)
        return NotSupported(
            f"'{speculation.strategy}' is not known to the target, which knows {known}", param="speculative.strategy"
        )
    if speculation.enabled and speculation.num_candidates > offered.max_candidates:
        return NotSupported(
            f"the target takes at most {offered.max_candidates} candidates", param="speculative.num_candidates"
        )
    # A target that only drives its own rounds draws above temperature 0 without the shared noise. Its text then has
    # the right distribution, which is all that `probabilistic` promises; the other strategies promise more.
    if "gateway" in offered.rounds or is_greedy(request.sampling) or _in_distribution(speculation.strategy, info):
        return None
    return InvalidRequest(
        f"'{speculation.strategy}' at temperature above 0 needs a target whose rounds the gateway drives; "
        "this one drives its own: use 'probabilistic', or temperature 0",
        param="speculative.strategy",
    )


def target_drives(request: GenerationRequest, info: ModelInfo) -> bool:
    """Whether the target is to drive the rounds. One that offers both drives them if that keeps every promise."""
    offered = info.capabilities
    if "target" not in offered.rounds:
        return False
    if "gateway" not in offered.rounds:
        return True
    speculation = request.speculation
    if not speculation.enabled or not may_be_drafted_for(request.sampling, request.grammar):
        return False
    # What only the gateway can ask for.
    if speculation.num_candidates > 1 or speculation.draft_model or request.prediction or request.log_decisions:
        return False
    if is_greedy(request.sampling):
        return True
    return _in_distribution(speculation.strategy, info) and offered.target_rounds_sampled


def _in_distribution(strategy: Strategy, info: ModelInfo) -> bool:
    """Whether the right distribution is all that the strategy promises: any lossless sampler keeps that."""
    facts = info.capabilities.facts(strategy)
    return facts is not None and facts.lossless and not facts.same_text
