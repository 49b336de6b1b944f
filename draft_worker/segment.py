"""A piece of the memory of answers: their tokens, and where each three of them in a row were said before.

The index is that of LZ77 compressors (zlib's hash chains): a table of heads by hash, and for every place the one before
it with the same hash. It takes 16 bytes a token and is only ever added to.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence

SHORTEST_MATCH = 3
LONGEST_MATCH = 64
SEGMENT_TOKENS = 32_768
_MOST_LINKS = 256
"""Places of one hash that are looked at, most recent first; bounds the time on text that repeats itself."""
_BREAK = -1
"""Stands between two answers: no token, so that no match and no draft goes across."""


class Segment:
    """At most SEGMENT_TOKENS tokens of one scope's answers."""

    __slots__ = ("_heads", "_links", "ids")

    def __init__(self) -> None:
        self.ids = array("i")
        self._links = array("i")
        self._heads = array("i", bytes(4 * 64))

    @property
    def bytes(self) -> int:
        return sum(map(sys.getsizeof, (self.ids, self._links, self._heads))) + 200

    def has_room(self, tokens: int) -> bool:
        return len(self.ids) + tokens + 1 <= SEGMENT_TOKENS

    def add(self, token_ids: Sequence[int]) -> None:
        """Append one answer. O(tokens), but for the table of heads, which doubles as the segment grows."""
        self.ids.append(_BREAK)
        self._links.append(0)
        first = len(self.ids)
        self.ids.extend(token_ids)
        self._links.extend([0] * len(token_ids))
        if len(self.ids) > len(self._heads):
            size = len(self._heads)
            while size < len(self.ids):
                size *= 2
            self._heads = array("i", bytes(4 * size))
            first = 0
        for end in range(first + SHORTEST_MATCH, len(self.ids) + 1):
            slot = self._slot(self.ids, end)
            self._links[end - 1] = self._heads[slot]
            self._heads[slot] = end

    def answers(self) -> Iterator[list[int]]:
        """Those that were added, in their order."""
        answer: list[int] = []
        for token_id in self.ids[1:]:
            if token_id == _BREAK:
                yield answer
                answer = []
            else:
                answer.append(token_id)
        if self.ids:
            yield answer

    def matches(self, tail: Sequence[int]) -> Iterator[tuple[int, int]]:
        """(length, end) of every place that says the last tokens of `tail` (LONGEST_MATCH are enough), latest first.

        `length` is from SHORTEST_MATCH to LONGEST_MATCH.
        """
        last = len(tail)
        if last < SHORTEST_MATCH:
            return
        ids, end = self.ids, self._heads[self._slot(tail, last)]
        for _ in range(_MOST_LINKS):
            if end == 0:
                return
            length, most = 0, min(LONGEST_MATCH, last, end)
            while length < most and ids[end - length - 1] == tail[last - length - 1]:
                length += 1
            if length >= SHORTEST_MATCH:
                yield length, end
            end = self._links[end - 1]

    def _slot(self, ids: Sequence[int], end: int) -> int:
        mixed = ids[end - 3] * 0x9E3779B1 ^ ids[end - 2] * 0x85EBCA77 ^ ids[end - 1] * 0xC2B2AE3D
        return (mixed >> 12) % len(self._heads)
