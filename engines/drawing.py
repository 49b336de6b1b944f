"""What every token drawn for one request shares: its parameters, where it stops, how much room it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engines.grammar.bitmask import permits_other_than
from engines.grammar.errors import GrammarError
from engines.history import History
from engines.sampling.noise import mix_choice
from engines.sampling.rows import SamplingRow
from protocol.messages import Sampling, SequenceRequest

if TYPE_CHECKING:
    from engines.grammar.state import GrammarState


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the model: its stop tokens, and the most tokens a sequence may have."""

    stop_token_ids: frozenset[int]
    context_length: int


@dataclass(frozen=True, slots=True)
class Places:
    """Where tokens are to be drawn: what decides each, and what a grammar permits there (bitmask int32 [n, W])."""

    rows: list[SamplingRow]
    allowed: Tensor | None


class RequestSampling:
    """One request's draws. `ids` is its context, of which nothing may change while the request is served.

    `room` is how many tokens it may still get, `stops` the tokens that end it.
    """

    def __init__(
        self,
        request: SequenceRequest,
        ids: list[int],
        limits: Limits,
        grammar: GrammarState | None = None,
        position: int | None = None,
    ) -> None:
        """`grammar`: where the sequence stands in the request's grammar, if it has one. `position`: the place of the
        first token drawn, if it has another one where the noise is shared."""
        own = request.sampling.stop_token_ids
        self.ids = ids
        self.length = len(ids)
        self._position = len(ids) if position is None else position
        self.room = min(request.max_tokens, limits.context_length - len(ids))
        # A grammar ends with the model's own stop token, after which it permits nothing else: no way to ignore that.
        ignored = request.sampling.ignore_eos and grammar is None
        self.stops = frozenset(own) if ignored else limits.stop_token_ids.union(own)
        # min_tokens masks the model's own even where they would not stop, as vLLM does.
        self._masked = limits.stop_token_ids.union(own)
        self._sampling = request.sampling
        self._seed = mix_choice(request.sampling.seed, request.choice_index)
        self._num_prompt_tokens = request.num_prompt_tokens
        self._grammar = grammar
        self._output = ids[request.grammar.start :] if request.grammar is not None else []

    def after(self, tails: Sequence[Sequence[int]], sampling: Sampling | None = None) -> Places:
        """The tokens after the context and each tail; `sampling` in place of the request's. Raises GrammarError.

        It does if the grammar refuses a tail, or permits nothing after one.
        """
        allowed = None
        if self._grammar is not None:
            masks = []
            for tail in tails:
                self._grammar.sync([*self._output, *tail])
                masks.append(self._grammar.masks_along([]).bitmask)
            allowed = torch.cat(masks)
        return self._places(tails, allowed, sampling)

    def along(self, token_ids: Sequence[int], parents: Sequence[int]) -> Places:
        """The token after the context, and those after each node of a tree that goes on from it (see Row).

        What the grammar refuses never enters the text, so what is permitted after it does not matter. Raises
        GrammarError if it refuses the context, or permits nothing at a place.
        """
        tails: list[list[int]] = [[]]
        for token_id, parent in zip(token_ids, parents, strict=True):
            tails.append([*tails[parent + 1], token_id])
        allowed = None
        if self._grammar is not None:
            self._grammar.sync(self._output)
            allowed = self._grammar.masks_along(token_ids, parents).bitmask
        return self._places(tails, allowed, None)

    def _places(self, tails: Sequence[Sequence[int]], allowed: Tensor | None, sampling: Sampling | None) -> Places:
        sampling = sampling or self._sampling
        if allowed is not None and not bool(allowed.any(dim=-1).all()):
            # Drawing would fail, and inside vLLM that ends the engine for everybody.
            raise GrammarError(
                "the grammar permits no token here, and the model has no stop token to end the text with"
            )
        rows = []
        for index, tail in enumerate(tails):
            own = sampling
            if allowed is not None and sampling.min_tokens and not permits_other_than(allowed[index], self._masked):
                own = sampling.model_copy(update={"min_tokens": 0})  # the text is complete: it can only end here
            rows.append(self._row(tail, own))
        return Places(rows, allowed)

    def _row(self, tail: Sequence[int], sampling: Sampling) -> SamplingRow:
        history = History(self.ids, self.length, tail)
        return SamplingRow(
            sampling, self._seed, self._position + len(tail), history, self._num_prompt_tokens, self._masked
        )
