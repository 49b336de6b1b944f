"""What the target may say at a place of a draft, by the draft model's logits there (docs/lookahead.md)."""

from __future__ import annotations

from torch import Tensor

from basics.names import GREEDY_TEMPERATURE
from draft_worker.outcomes import Place
from engines.drawing import Places
from engines.runtime.jobs import Passed
from engines.sampling import noise
from engines.sampling.draw import draw_top
from engines.sampling.process import process
from engines.sampling.rows import SamplingRow
from protocol.messages import DraftRequest

_RANKED = 64
"""The noise chooses among so many of the likeliest tokens: a guess need not be exact, and on a CPU the noise of a whole
vocabulary can take as long as a pass."""


class Guesses:
    """One request's. `count` a place at most."""

    def __init__(self, request: DraftRequest, count: int) -> None:
        self._greedy = request.sampling.temperature < GREEDY_TEMPERATURE
        # A token in the draft's place is replaced by a draw from the residual, which has a noise of its own.
        self._instead = noise.RESIDUAL if request.want_q else noise.DRAW
        self._count = count

    def at(self, logits: Tensor, places: Places, drafted: bool = True) -> list[list[int]]:
        """For each place, the likeliest first; `drafted`: the draft has a token there, which may be among them."""
        rows = places.rows
        if self._greedy:
            distribution = process(logits, [_likeliest(row, self._count) for row in rows], places.allowed)
            return [ids for ids, _ in distribution.truncate(self._count).entries()]
        distribution = process(logits, rows, places.allowed).truncate(_RANKED)
        stream = self._instead if drafted else noise.DRAW
        found = draw_top(distribution, rows, self._count, stream).tolist()
        return [[token_id for token_id in ids if token_id >= 0] for ids in found]


def places_of(passed: Passed) -> list[Place]:
    """What is known of the places that tokens were drawn for: their logits, or the runners-up."""
    drawn = passed.drawn
    if len(passed.logits) == len(drawn.tokens):
        return [row[None] for row in passed.logits.clone()]
    return [[token_id] for token_id in drawn.second] if drawn.second else [None] * len(drawn.tokens)


def _likeliest(row: SamplingRow, count: int) -> SamplingRow:
    likeliest = {"temperature": 1.0, "top_k": count, "top_p": 1.0, "min_p": 0.0}
    sampling = row.sampling.model_copy(update=likeliest)
    return SamplingRow(sampling, row.seed, row.position, row.history, row.num_prompt_tokens, row.stop_token_ids)
