"""What every token drawn for one request shares: its parameters, where it stops, how much room it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.history import History
from engines.sampling.noise import mix_choice
from engines.sampling.rows import SamplingRow
from protocol.messages import Sampling, SequenceRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the model: its stop tokens, and the most tokens a sequence may have."""

    stop_token_ids: frozenset[int]
    context_length: int


class Drawing:
    """One request's draws. `ids` is its context, of which nothing may change while the request is served.

    `room` is how many tokens it may still get, `stops` the tokens that end it.
    """

    def __init__(self, request: SequenceRequest, ids: list[int], limits: Limits) -> None:
        own = request.sampling.stop_token_ids
        self.ids = ids
        self.length = len(ids)
        self.room = min(request.max_tokens, limits.context_length - len(ids))
        self.stops = frozenset(own) if request.sampling.ignore_eos else limits.stop_token_ids.union(own)
        # min_tokens masks the model's own even where they would not stop, as vLLM does.
        self._masked = limits.stop_token_ids.union(own)
        self._sampling = request.sampling
        self._seed = mix_choice(request.sampling.seed, request.choice_index)
        self._num_prompt_tokens = request.num_prompt_tokens

    def row(self, tail: Sequence[int] = (), sampling: Sampling | None = None) -> SamplingRow:
        """What decides the token after the context and `tail`; `sampling` in place of the request's."""
        history = History(self.ids, self.length, tail)
        position = self.length + len(tail)
        return SamplingRow(
            sampling or self._sampling, self._seed, position, history, self._num_prompt_tokens, self._masked
        )
