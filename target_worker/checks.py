"""What a target refuses before it does any work, by the name of the field."""

from __future__ import annotations

from protocol.errors import Unsupported
from protocol.messages import GenerateRequest, VerifyRequest
from protocol.worker_info import ModelInfo
from target_worker.strategies import check_candidate, check_candidates
from worker.checks import check_ids, check_sequence


def check_verify(request: VerifyRequest, info: ModelInfo) -> None:
    """Raises a WireError for what this target cannot honour."""
    check_sequence(request, info)
    capabilities = info.capabilities
    if request.strategy not in capabilities.strategies:
        raise Unsupported(f"strategy {request.strategy} is not supported", "strategy")
    if len(request.candidates) > capabilities.max_candidates:
        raise Unsupported(f"this target takes {capabilities.max_candidates} candidates at most", "candidates")
    vocabulary = info.vocabulary.logits_size if info.vocabulary is not None else 0
    for index, candidate in enumerate(request.candidates):
        check_ids(candidate.token_ids, vocabulary, f"candidates.{index}.token_ids")
    check_candidates(request.strategy, request.candidates, vocabulary)
    if request.follows is not None and not capabilities.follows:
        raise Unsupported("this target takes no verification that follows another", "follows")
    for index, alternative in enumerate(request.alternatives):
        check_ids(alternative.token_ids, vocabulary, f"alternatives.{index}.token_ids")
        check_ids(alternative.candidate.token_ids, vocabulary, f"alternatives.{index}.candidate.token_ids")
        check_candidate(request.strategy, alternative.candidate, vocabulary, f"alternatives.{index}.candidate")


def check_generate(request: GenerateRequest, info: ModelInfo) -> None:
    """Raises a WireError for what this target cannot honour."""
    check_sequence(request, info)
    speculation = request.speculation
    if speculation is not None and speculation.enabled and "target" not in info.capabilities.rounds:
        raise Unsupported("this target does not drive speculative rounds itself", "speculation.enabled")
