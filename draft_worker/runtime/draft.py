"""Drafts from a model: autoregressive steps on the torch engine's loop, drawn with the target's own noise.

Candidate 0 follows the noise. Candidate i ≥ 1 leaves it where the i-th smallest gap lies between the two best
perturbed logits, takes the second best there, and follows the noise again (docs/one_round.md). The
candidates after the first grow together, as a tree over the shared context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from draft_worker.engine import Drafted, SharedNoise
from draft_worker.outcomes import Branch, Place
from draft_worker.runtime.branches import grow
from draft_worker.runtime.guesses import places_of
from engines.drawing import Limits, RequestSampling
from engines.runtime.jobs import Feed, Job, Passed, Seat, Steps, prompt_of
from protocol.messages import Candidate, DraftRequest, DraftTimings, TopK

if TYPE_CHECKING:
    from engines.grammar.state import GrammarState
    from engines.sampling.columns import Columns

_NONE = DraftTimings(queue_ms=0.0, forward_ms=0.0, sample_ms=0.0, total_ms=0.0)


def draft_job(
    request: DraftRequest,
    ids: list[int],
    owner: int | None,
    limits: Limits,
    q_top_k: int,
    grammar: GrammarState | None = None,
    shared: SharedNoise | None = None,
) -> Job[Drafted]:
    """The job that drafts for a checked request, whose whole context is `ids`. With draft_tokens 0 it only reads it."""
    drawing = RequestSampling(request, ids, limits, grammar, shared.position if shared is not None else None)
    drafting = _Drafting(request, drawing, q_top_k, shared.columns if shared is not None else None)
    usable = len(ids) if request.draft_tokens == 0 else len(ids) - 1
    return Job(ids, request.cache_salt, owner, usable, drafting.steps, prompt=prompt_of(request))


@dataclass(slots=True)
class _Chain:
    """Candidate 0 as it grows, with the draws at each of its places."""

    tokens: list[int] = field(default_factory=list)
    second: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    q: list[TopK] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)


class _Drafting:
    def __init__(
        self, request: DraftRequest, drawing: RequestSampling, q_top_k: int, columns: Columns | None = None
    ) -> None:
        self._request = request
        self._drawing = drawing
        self._depth = request.draft_tokens
        self._q_top_k = q_top_k
        self._columns = columns
        self._timings = _NONE
        changes = {"temperature": request.candidate_temperature, "top_p": request.candidate_top_p}
        given = {name: value for name, value in changes.items() if value is not None}
        self._branch_sampling = request.sampling.model_copy(update=given) if given else None

    def steps(self, seat: Seat) -> Steps[Drafted]:
        if self._depth == 0:
            tail = self._drawing.ids[seat.length :]
            if tail:
                self._count((yield Feed(tail, len(tail), divisible=len(tail))))
            return Drafted([], seat.cached_tokens, self._timings)
        chain = yield from self._grow_chain(seat)
        candidates = [Candidate(token_ids=chain.tokens, logprobs=_logprobs(chain), q=chain.q or None)]
        if self._request.num_candidates > 1:
            branches = self._branches(chain)
            yield from grow(
                self._drawing,
                chain.tokens,
                branches,
                lambda feed, passed: self._count(passed),
                self._branch_sampling,
                columns=self._columns,
            )
            candidates += [Candidate(token_ids=chain.tokens[: branch.at] + branch.tokens) for branch in branches]
        return Drafted(candidates, seat.cached_tokens, self._timings, places=chain.places)

    def _grow_chain(self, seat: Seat) -> Steps[_Chain]:
        chain = _Chain()
        feed = self._drawing.ids[seat.length :]
        request = self._request
        alone = request.num_candidates == 1 and not request.want_q and request.grammar is None
        alone = alone and self._columns is None
        keeps = request.lookahead_tokens > 0 and request.num_candidates == 1 and self._columns is None
        while len(chain.tokens) < self._depth:
            next_place = self._drawing.after([chain.tokens])
            passed = self._count(
                (
                    yield Feed(
                        feed,
                        len(feed) - 1,
                        rows=next_place.rows,
                        allowed=next_place.allowed,
                        divisible=len(feed) - 1,
                        top2=self._request.num_candidates > 1,
                        truncate=self._q_top_k if self._request.want_q else None,
                        chain=self._depth - len(chain.tokens) if alone else 0,
                        keeps=keeps,
                        columns=self._columns,
                    )
                )
            )
            drawn = passed.drawn
            chain.tokens += drawn.tokens
            if keeps:  # what may stand there instead is found out once the draft is answered
                chain.places += places_of(passed)
            chain.second += drawn.second
            chain.gaps += drawn.gaps
            if self._request.want_q:
                ((token_ids, logprobs),) = passed.distribution.entries()
                chain.q.append(TopK(token_ids=token_ids, logprobs=logprobs))
            feed = drawn.tokens[-1:]
            if not self._drawing.stops.isdisjoint(drawn.tokens):
                stop = next(place for place, token in enumerate(chain.tokens) if token in self._drawing.stops)
                del chain.tokens[stop + 1 :]
                del chain.places[stop + 1 :]
                break
        return chain

    def _branches(self, chain: _Chain) -> list[Branch]:
        """Where the other candidates leave candidate 0, the least certain place first."""
        places = [place for place, gap in enumerate(chain.gaps) if gap < math.inf]
        places.sort(key=lambda place: chain.gaps[place])
        return [
            Branch(place, [chain.second[place]], self._depth - place)
            for place in places[: self._request.num_candidates - 1]
        ]

    def _count(self, passed: Passed | None) -> Passed:
        assert passed is not None
        one, so_far = passed.timings, self._timings
        self._timings = DraftTimings(
            queue_ms=so_far.queue_ms + one.queue_ms,
            forward_ms=so_far.forward_ms + one.forward_ms,
            sample_ms=so_far.sample_ms + one.sample_ms,
            total_ms=so_far.total_ms + one.total_ms,
        )
        return passed


def _logprobs(chain: _Chain) -> list[float] | None:
    """Of the drafted tokens under q, if q was asked for: a by-product then, and expensive otherwise."""
    if not chain.q:
        return None
    return [top.logprobs[top.token_ids.index(token)] for top, token in zip(chain.q, chain.tokens, strict=True)]
