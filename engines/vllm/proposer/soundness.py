"""What is done if vLLM's rejection sampler is wrong (sampler_faults.py): drafts are kept away from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from engines.vllm.proposer.sampler_faults import find_fault, find_greedy_fault

logger = logging.getLogger("vllm.tandem")


class Sampler:
    """What is known about the engine's sampler; `beside_sampled` is False if drafts in such a batch are dropped.

    `own_rows` are those whose tokens Tandem's logits processor draws.
    """

    def __init__(self) -> None:
        self.beside_sampled = True
        self.dropped = 0
        self.guarded = False
        self.own_rows: Callable[[], Collection[int]] = tuple


def examine(device: Any) -> Sampler | None:
    """Test the rejection sampler of the running vLLM; make one that fails drop drafts in batches that it gets wrong.

    Returns:
        None if neither can be done, so that no draft may be proposed at all.
    """
    try:
        from vllm.v1.sample.rejection_sampler import RejectionSampler

        sampler = Sampler()
        if (fault := find_greedy_fault(device)) is not None:
            logger.error("Tandem: this vLLM does not decode greedily as Tandem does: %s. Nothing is proposed.", fault)
            return None
        fault = find_fault(device)
        if fault is None:
            return sampler
        guard(RejectionSampler, sampler)
        sampler.beside_sampled = False
        logger.warning(
            "Tandem: the rejection sampler of this vLLM is wrong: %s. While a sampled request (temperature above 0) "
            "is in the batch, no drafts are proposed, and drafts that it meets are dropped.",
            fault,
        )
        still = find_fault(device)
        sampler.dropped = 0
        if still is None:
            return sampler
        logger.error("Tandem: the sampler stays wrong with drafts dropped (%s): nothing is proposed.", still)
    except Exception:
        logger.exception("Tandem: the rejection sampler of this vLLM could not be tested: nothing is proposed.")
    return None


def keep_own_draws(sampler: Sampler | None, own_rows: Callable[[], Collection[int]]) -> None:
    """Never let vLLM take a draft's verdict for a token that Tandem's logits processor is to draw.

    We never draft for one, but vLLM's scheduler pads a new request, all of whose prompt but one token is cached, with
    drafts that stand for nothing; and it applies no custom processors to drafted rows.
    """
    from vllm.v1.sample.rejection_sampler import RejectionSampler

    sampler = sampler or Sampler()
    sampler.own_rows = own_rows
    if not sampler.guarded:
        guard(RejectionSampler, sampler)


def guard(rejection_sampler: Any, sampler: Sampler) -> None:
    """From now on draw one token for each request of a batch, as if nothing were drafted, if drafts do harm.

    That is beside a sampled request, if the sampler is wrong there, and if a row of our own has drafts. The engine
    takes it for drafts rejected at once. A request that joins a batch whose drafts are under way can be met nowhere
    else: the proposer has spoken before the scheduler lets it in.
    """
    plain: Callable[..., Any] = rejection_sampler.forward

    def forward(self: Any, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
        spoilt = not (sampler.beside_sampled or sampling_metadata.all_greedy)
        if not spoilt and not any(metadata.num_draft_tokens[row] for row in sampler.own_rows()):
            return plain(self, metadata, draft_probs, logits, sampling_metadata)
        sampler.dropped += spoilt
        first = metadata.cu_num_sampled_tokens.roll(1)
        first[0] = 0
        undrafted = replace(sampling_metadata, spec_token_ids=[[] for _ in metadata.num_draft_tokens])
        return self.sampler(logits=logits[first.long()], sampling_metadata=undrafted)

    rejection_sampler.forward = forward
    sampler.guarded = True
