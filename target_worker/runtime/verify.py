"""A verification on the loop: one forward pass over the context's tail and everything drafted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from engines.drawing import Limits, RequestSampling
from engines.runtime.jobs import Feed, Job, PassTimings, Seat, Steps, prompt_of
from protocol.messages import VerifyRequest, VerifyResponse, VerifyTimings
from target_worker.logprobs import reported_logprobs
from target_worker.verification import Verification

if TYPE_CHECKING:
    from engines.grammar.state import GrammarState


def verify_job(
    request: VerifyRequest,
    ids: list[int],
    owner: int | None,
    limits: Limits,
    log_all: bool,
    grammar: GrammarState | None = None,
) -> Job[VerifyResponse]:
    """The job that answers a checked request, whose whole context is `ids`. `log_all`: log decisions always."""
    verification = Verification(request, RequestSampling(request, ids, limits, grammar), log_all)
    return Job(
        ids, request.cache_salt, owner, len(ids) - 1, lambda seat: _steps(verification, seat), prompt=prompt_of(request)
    )


def _steps(verification: Verification, seat: Seat) -> Steps[VerifyResponse]:
    request, tree = verification.request, verification.tree
    tail = verification.drawing.ids[seat.length :]
    root = len(tail) - 1
    parents = None
    if not tree.is_chain:
        parents = [*range(-1, root), *(root + 1 + parent for parent in tree.parents)]
    places = verification.places()
    passed = yield Feed(
        [*tail, *tree.token_ids], root, parents, rows=places.rows, allowed=places.allowed, divisible=root
    )
    assert passed is not None
    began = time.perf_counter()
    verdict = verification.judge(places, passed.distribution, passed.drawn.tokens)
    cut = verification.cut(verdict)
    path = verification.paths[verdict.candidate]
    if parents is not None:
        seat.commit([root + place for place in path[1 : cut.num_accepted + 1]])
    logprobs = None
    if request.logprobs is not None:
        index = torch.tensor(path[: len(cut.token_ids)], device=passed.logits.device)
        logprobs = reported_logprobs(passed.logits[index], cut.token_ids, request.logprobs)
    took = timings(passed.timings, (time.perf_counter() - began) * 1e3)
    return verification.response(verdict, cut, logprobs, seat.cached_tokens, took)


def timings(passed: PassTimings, judging_ms: float) -> VerifyTimings:
    """A pass's timings; judging its draws counts as sampling."""
    return VerifyTimings(
        queue_ms=passed.queue_ms,
        forward_ms=passed.forward_ms,
        sample_ms=passed.sample_ms + judging_ms,
        total_ms=passed.total_ms + judging_ms,
        rows=passed.rows,
        sessions=passed.sessions,
    )
