"""A verification, whatever engine computes it: candidates → places → verdict → response, and the log of decisions.

An engine draws the target's tokens at `places`, has them judged with `judge` (it holds the distributions) or
`judge_emitted` (it judged each place itself, and reports what came out), and answers with `response`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch

from engines.drawing import Places, RequestSampling
from engines.sampling.distribution import Distribution
from protocol.messages import GenerateRequest, TokenLogprob, VerifyRequest, VerifyResponse, VerifyTimings
from target_worker.strategies import STRATEGIES
from target_worker.strategies.drafts import Target, pad_drafts
from target_worker.strategies.probabilistic import pad_q
from target_worker.strategies.verdicts import (
    Cut,
    Decision,
    Verdict,
    cut_after_stop,
    decisions,
    emitted_decisions,
    keep_longest,
    verdicts,
)
from target_worker.tree import merge

logger = logging.getLogger(__name__)


class Verification:
    """One checked `/v1/verify`.

    `chains` are the candidates as far as tokens may still be emitted (at least one, maybe empty), `tree` is all of them
    merged. Place 0 is after the context, place i + 1 after node i of the tree; `paths[c]` are the places of chain c.
    """

    def __init__(self, request: VerifyRequest, drawing: RequestSampling, log_all: bool) -> None:
        self.request = request
        self.drawing = drawing
        self.strategy = STRATEGIES[request.strategy]
        self.chains = [candidate.token_ids[: drawing.room] for candidate in request.candidates] or [[]]
        self.tree = merge(self.chains)
        self.paths = [[0, *(node + 1 for node in path)] for path in self.tree.paths]
        self._log = log_all or request.log_decisions

    def places(self) -> Places:
        """What decides the target's token at every place. Raises GrammarError."""
        return self.drawing.along(self.tree.token_ids, self.tree.parents)

    def judge(self, places: Places, distribution: Distribution, own: Sequence[int]) -> Verdict:
        """From the target's distributions and its own draws, one of each a place."""
        q = None
        if self.strategy.needs_q:
            sent = [candidate.q or [] for candidate in self.request.candidates] or [[]]
            cut = [entries[: len(chain)] for entries, chain in zip(sent, self.chains, strict=True)]
            q = pad_q(cut, distribution.device)
        threshold = [self.request.acceptance_threshold] * len(self.chains)
        drafts = pad_drafts(self.chains, self.paths, distribution.device, q, threshold)
        target = Target(distribution, places.rows, torch.tensor(own, device=distribution.device))
        outcome = self.strategy.verify(drafts, target)
        (verdict,) = verdicts(drafts, target, outcome, [len(self.chains)])
        if self._log:
            for index in range(len(self.chains)):
                found = decisions(drafts, target, outcome, index, self.strategy.rejection, self.drawing.stops)
                self._log_decisions(index, verdict, found)
        return verdict

    def judge_emitted(self, emitted: Mapping[int, int]) -> Verdict:
        """From the token that the strategy emits at each place: a drafted one is accepted if it is that token.

        Only for strategies that never emit a token which they rejected (Strategy.emits_rejected). A place whose token
        may not be emitted any more may be missing.
        """
        accepted = []
        for chain, path in zip(self.chains, self.paths, strict=True):
            agreed = [emitted.get(place) == token for place, token in zip(path, chain, strict=False)]
            accepted.append(agreed.index(False) if False in agreed else len(agreed))
        kept = keep_longest(self.chains, accepted)
        most = accepted[kept]
        after = emitted.get(self.paths[kept][most])
        verdict = Verdict(kept, most, [*self.chains[kept][:most], *([] if after is None else [after])])
        if self._log:
            for index, (chain, path) in enumerate(zip(self.chains, self.paths, strict=True)):
                tokens = [emitted.get(place) for place in path]
                found = emitted_decisions(
                    chain, tokens, accepted[index], self.drawing.length, self.strategy.rejection, self.drawing.stops
                )
                self._log_decisions(index, verdict, found)
        return verdict

    def cut(self, verdict: Verdict) -> Cut:
        """Which of the verdict's tokens are emitted."""
        return cut_after_stop(verdict.token_ids, verdict.num_accepted, self.drawing.stops, self.drawing.room)

    def response(
        self,
        verdict: Verdict,
        cut: Cut,
        logprobs: list[TokenLogprob] | None,
        cached_tokens: int,
        timings: VerifyTimings,
    ) -> VerifyResponse:
        sent = self.request.candidates
        return respond(
            self.request,
            cut,
            candidate=verdict.candidate if sent else None,
            num_drafted=len(sent[verdict.candidate].token_ids) if sent else 0,
            lossless=self.strategy.lossless(self.request.sampling.temperature),
            logprobs=logprobs,
            cached_tokens=cached_tokens,
            timings=timings,
        )

    def _log_decisions(self, index: int, verdict: Verdict, found: Sequence[Decision]) -> None:
        """A line for every drafted token of a candidate."""
        where = f"session {self.request.session_id} round {self.request.round} candidate {index}"
        where += " (kept)" if index == verdict.candidate else ""
        for decision in found:
            logger.info("%s: %s", where, decision)


def respond(
    request: VerifyRequest | GenerateRequest,
    cut: Cut,
    *,
    logprobs: list[TokenLogprob] | None,
    cached_tokens: int,
    timings: VerifyTimings,
    candidate: int | None = None,
    num_drafted: int = 0,
    lossless: bool = True,
) -> VerifyResponse:
    """One round, verified or decoded, as a message."""
    return VerifyResponse(
        session_id=request.session_id,
        round=request.round,
        candidate=candidate,
        num_drafted=num_drafted,
        num_accepted=cut.num_accepted,
        acceptance_mask=[place < cut.num_accepted for place in range(num_drafted)],
        token_ids=cut.token_ids,
        logprobs=logprobs,
        stop_reason=cut.stop_reason,
        stop_token_id=cut.stop_token_id,
        lossless=lossless,
        cached_tokens=cached_tokens,
        timings=timings,
    )
