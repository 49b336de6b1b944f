"""Comparing lists of token ids."""

from __future__ import annotations

from collections.abc import Sequence

_BLOCK = 512


def shared_prefix(one: Sequence[int], other: Sequence[int], start: int = 0) -> int:
    """How many of `other` equal one[start:], from their first on.

    Block by block, as comparing whole lists is what Python does fastest.
    """
    limit = max(0, min(len(one) - start, len(other)))
    done = 0
    while done < limit:
        size = min(_BLOCK, limit - done)
        if one[start + done : start + done + size] != other[done : done + size]:
            while one[start + done] == other[done]:
                done += 1
            return done
        done += size
    return limit
