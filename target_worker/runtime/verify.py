"""A verification: one forward pass over the context's tail and everything drafted, then the strategy's verdict."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import torch

from engines.drawing import Drawing, Limits
from engines.runtime.jobs import Feed, Job, Passed, PassTimings, Seat, Steps
from engines.sampling.rows import SamplingRow
from protocol.messages import VerifyRequest, VerifyResponse, VerifyTimings
from target_worker.logprobs import reported_logprobs
from target_worker.strategies import STRATEGIES
from target_worker.strategies.drafts import Drafts, Outcome, Target, pad_drafts
from target_worker.strategies.probabilistic import pad_q
from target_worker.strategies.verdicts import Verdict, cut_after_stop, decisions, verdicts
from target_worker.tree import merge

if TYPE_CHECKING:
    from engines.grammar.state import GrammarState


logger = logging.getLogger(__name__)


def verify_job(
    request: VerifyRequest,
    ids: list[int],
    owner: int | None,
    limits: Limits,
    log_all: bool,
    grammar: GrammarState | None = None,
) -> Job[VerifyResponse]:
    """The job that answers a checked request, whose whole context is `ids`. `log_all`: log decisions unasked."""
    verification = _Verification(request, Drawing(request, ids, limits, grammar), log_all)
    return Job(ids, request.cache_salt, owner, len(ids) - 1, verification.steps)


class _Verification:
    def __init__(self, request: VerifyRequest, drawing: Drawing, log_all: bool) -> None:
        self._request = request
        self._drawing = drawing
        self._strategy = STRATEGIES[request.strategy]
        self._log = log_all or request.log_decisions
        # No more is drafted than may be emitted.
        self._chains = [candidate.token_ids[: self._drawing.room] for candidate in request.candidates] or [[]]
        self._tree = merge(self._chains)

    def steps(self, seat: Seat) -> Steps[VerifyResponse]:
        drawing, tree = self._drawing, self._tree
        tail = drawing.ids[seat.length :]
        root = len(tail) - 1
        parents = None
        if not tree.is_chain:
            parents = [*range(-1, root), *(root + 1 + parent for parent in tree.parents)]
        places = drawing.along(tree.token_ids, tree.parents)
        passed = yield Feed(
            [*tail, *tree.token_ids], root, parents, rows=places.rows, allowed=places.allowed, divisible=root
        )
        assert passed is not None
        began = time.perf_counter()
        verdict = self._judge(passed, places.rows)
        cut = cut_after_stop(verdict.token_ids, verdict.num_accepted, drawing.stops, drawing.room)
        path = tree.paths[verdict.candidate]
        if parents is not None:
            seat.commit([root + 1 + node for node in path[: cut.num_accepted]])
        logprobs = None
        if self._request.logprobs is not None:
            index = torch.tensor([0, *(node + 1 for node in path)][: len(cut.token_ids)], device=passed.logits.device)
            logprobs = reported_logprobs(passed.logits[index], cut.token_ids, self._request.logprobs)
        drafted = len(self._request.candidates[verdict.candidate].token_ids) if self._request.candidates else 0
        return VerifyResponse(
            session_id=self._request.session_id,
            round=self._request.round,
            candidate=verdict.candidate if self._request.candidates else None,
            num_drafted=drafted,
            num_accepted=cut.num_accepted,
            acceptance_mask=[place < cut.num_accepted for place in range(drafted)],
            token_ids=cut.token_ids,
            logprobs=logprobs,
            stop_reason=cut.stop_reason,
            stop_token_id=cut.stop_token_id,
            lossless=self._strategy.lossless(self._request.sampling.temperature),
            cached_tokens=seat.cached_tokens,
            timings=timings(passed.timings, (time.perf_counter() - began) * 1e3),
        )

    def _judge(self, passed: Passed, rows: list[SamplingRow]) -> Verdict:
        chains = self._chains
        q = None
        if self._strategy.needs_q:
            sent = [candidate.q or [] for candidate in self._request.candidates] or [[]]
            cut = [entries[: len(chain)] for entries, chain in zip(sent, chains, strict=True)]
            q = pad_q(cut, passed.logits.device)
        threshold = [self._request.acceptance_threshold] * len(chains)
        paths = [[0, *(node + 1 for node in path)] for path in self._tree.paths]
        drafts = pad_drafts(chains, paths, passed.logits.device, q, threshold)
        own = torch.tensor(passed.drawn.tokens, device=passed.logits.device)
        target = Target(passed.distribution, rows, own)
        outcome = self._strategy.verify(drafts, target)
        (verdict,) = verdicts(drafts, target, outcome, [len(chains)])
        if self._log:
            self._log_decisions(drafts, target, outcome, verdict.candidate)
        return verdict

    def _log_decisions(self, drafts: Drafts, target: Target, outcome: Outcome, kept: int) -> None:
        """A line for every drafted token of every candidate."""
        for index in range(len(self._chains)):
            where = f"session {self._request.session_id} round {self._request.round} candidate {index}"
            where += " (kept)" if index == kept else ""
            stops = self._drawing.stops
            for decision in decisions(drafts, target, outcome, index, self._strategy.rejection, stops):
                logger.info("%s: %s", where, decision)


def timings(passed: PassTimings, judging_ms: float) -> VerifyTimings:
    """Of a pass and what was done with its draws afterwards, which counts as sampling."""
    return VerifyTimings(
        queue_ms=passed.queue_ms,
        forward_ms=passed.forward_ms,
        sample_ms=passed.sample_ms + judging_ms,
        total_ms=passed.total_ms + judging_ms,
        rows=passed.rows,
        sessions=passed.sessions,
    )
