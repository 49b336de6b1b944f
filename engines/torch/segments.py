"""What the tokens of one sequence see in a pass: which keys, and which of them are hidden."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engines.torch.kv_cache import Places

Seen = tuple[slice | Tensor, int, Tensor | None]
"""Rows among the pass's [tokens · group] queries, the first key's position, and the mask over keys from there on."""


@dataclass(slots=True)
class Segment:
    """Queries of one sequence, at positions first, first + 1, …, that attend over one length of its slot.

    `tokens` are the queries' among the pass's; keys are positions [0, key_length) of the slot, or those that a layer's
    window leaves. Before attending, the tree nodes `nodes` (tokens of the pass) are put to `places` in the key-value
    memory, if there are any. `bucket`: keys begin at its multiples, so that they depend on `first // bucket` alone.
    """

    tokens: slice | Tensor
    slot: int
    first: int
    count: int
    key_length: int
    nodes: Tensor | None = None
    places: Places | None = None
    bucket: int = 1
    _seen: dict[tuple[int, int | None], Seen] = field(default_factory=dict)

    def seen(self, group: int, window: int | None, dtype: torch.dtype, device: torch.device) -> Seen:
        """For layers of `group` query heads for each key head and this window; made once a pass.

        Grouped-query attention without repeating keys: the query heads that share a key head are rows beside each
        other, so a token is `group` rows and one slot one batch of `key_value_heads` plain attentions.
        """
        known = self._seen.get((group, window))
        if known is None:
            low = 0
            if window is not None:
                oldest = self.first // self.bucket * self.bucket - window + 1
                low = max(0, oldest) // self.bucket * self.bucket
            mask = causal_mask(self.first, self.count, low, self.key_length, window, group, dtype, device)
            known = self._seen[group, window] = (self._rows(group, device), low, mask)
        return known

    def _rows(self, group: int, device: torch.device) -> slice | Tensor:
        if isinstance(self.tokens, slice):
            return slice(self.tokens.start * group, self.tokens.stop * group)
        return (self.tokens[:, None] * group + torch.arange(group, device=device)).flatten()


def causal_mask(
    first: int,
    count: int,
    low: int,
    key_length: int,
    window: int | None,
    group: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor | None:
    """Additive mask [count · group, key_length - low] over the keys at low, low + 1, …, key_length - 1 for queries at
    first, first + 1, …, each repeated `group` times; None if all see all."""
    windowed = window is not None and low <= first + count - 1 - window
    if count == 1 and key_length == first + 1 and not windowed:
        return None
    everything = torch.full((count, key_length - low), float("-inf"), dtype=dtype, device=device)
    mask = everything.triu(first + 1 - low)
    if window is not None and windowed:
        mask += everything.tril_(first - window - low)
    return mask if group == 1 else mask.repeat_interleave(group, dim=0)
