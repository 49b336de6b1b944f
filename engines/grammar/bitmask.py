"""Packed masks over a vocabulary: int32 [R, ⌈V / 32⌉], bit b of word w permits token 32 w + b."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor


def unpack(bitmask: Tensor, vocabulary: int) -> Tensor:
    """int32 [R, ⌈V / 32⌉] → bool [R, V], True if permitted."""
    bits = torch.arange(32, dtype=torch.int32, device=bitmask.device)
    return (bitmask[:, :, None] >> bits).bitwise_and_(1).bool().flatten(1)[:, :vocabulary]


def permits(row: Tensor, token_id: int) -> bool:
    """Whether one packed row, int32 [⌈V / 32⌉], permits a token. Ids outside the vocabulary are not permitted."""
    word = token_id >> 5
    return 0 <= word < row.shape[0] and bool((int(row[word]) >> (token_id & 31)) & 1)


def permits_other_than(row: Tensor, token_ids: Collection[int]) -> bool:
    """Whether one packed row permits any token beside these."""
    rest = row.clone()
    for token_id in token_ids:
        if token_id >> 5 < len(rest):
            bit = 1 << (token_id & 31)
            rest[token_id >> 5] &= ~(bit - 2**32 if bit == 2**31 else bit)
    return bool(rest.any())


def only_permitted(row: Tensor) -> int | None:
    """The one token that a packed row permits, None if it permits none or several."""
    words = row.nonzero().flatten()
    if len(words) != 1:
        return None
    word = int(words[0])
    bits = int(row[word]) & 0xFFFFFFFF
    return word * 32 + bits.bit_length() - 1 if bits & (bits - 1) == 0 else None
