"""The memory of answers: what was said before under one scope, and how it went on there.

The ideas are those of SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975): of all places that say what the context
ends with, the continuation that most of them have, as far as it is likely; the longer the match, the longer the draft.
Its suffix tree is a chain of places here, whose memory is a twentieth of a tree's in Python.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from basics.names import MAX_DRAFT_TOKENS
from draft_worker.segment import LONGEST_MATCH, SEGMENT_TOKENS, Segment

_MOST_PLACES = 64
_LEAST_SHARE = 0.2
"""Of the places that match, how many must have a continuation for it to be worth a draft token."""
_TOKENS_A_MATCH = 4
"""γ is at most so many tokens for each one that matches."""
_SCOPE_BYTES = 400


@dataclass(frozen=True, slots=True)
class Remembered:
    """A continuation, and how many of the context's last tokens the places it comes from agree with."""

    token_ids: list[int]
    match: int


@dataclass(slots=True)
class _Scope:
    segments: list[Segment] = field(default_factory=list)


class AnswerMemory:
    """Answers by scope, within `most_bytes` together: the least recently used segment goes first.

    A scope is whatever string a caller gives; nothing is ever found under another one. Used on one thread.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._scopes: dict[str, _Scope] = {}
        self._used: OrderedDict[tuple[str, int], Segment] = OrderedDict()
        """Least recently used first, by the scope and the segment's id()."""
        self.bytes = 0
        self.evictions = 0

    @property
    def tokens(self) -> int:
        return sum(len(segment.ids) for segment in self._used.values())

    @property
    def scopes(self) -> int:
        return len(self._scopes)

    def add(self, scope: str, token_ids: Sequence[int]) -> None:
        """Remember one answer, with as much of its prompt's end before it as leads to it."""
        for start in range(0, len(token_ids), SEGMENT_TOKENS - 1):
            self._add(scope, token_ids[start : start + SEGMENT_TOKENS - 1])

    def continuation(self, scope: str, context: Sequence[int], tokens: int) -> Remembered | None:
        """Up to `tokens` tokens after `context`; None if its last tokens were not said before under this scope."""
        held = self._scopes.get(scope)
        if held is None or tokens < 1:
            return None
        tail = context[-LONGEST_MATCH:]
        places: list[tuple[int, int, Segment]] = []
        for segment in reversed(held.segments):
            found = islice(segment.matches(tail), _MOST_PLACES - len(places))
            places += [(length, end, segment) for length, end in found]
            if len(places) >= _MOST_PLACES:
                break
        best, best_score, source = None, 0.0, None
        for match in sorted({length for length, _, _ in places}, reverse=True)[:4]:
            going_on = [(segment, end) for length, end, segment in places if length >= match]
            most = min(tokens, MAX_DRAFT_TOKENS, _TOKENS_A_MATCH * match)
            draft, score = _likeliest(going_on, most)
            if score > best_score:
                best, best_score, source = Remembered(draft, match), score, going_on[0][0]
        if source is not None:
            self._used.move_to_end((scope, id(source)))
        return best

    def answers(self) -> Iterator[tuple[str, list[int]]]:
        """All that is held, least recently used first: adding it in this order makes the same memory."""
        for (scope, _), segment in self._used.items():
            for answer in segment.answers():
                yield scope, answer

    def _add(self, scope: str, token_ids: Sequence[int]) -> None:
        held = self._scopes.get(scope)
        if held is None:
            held = self._scopes[scope] = _Scope()
            self.bytes += _SCOPE_BYTES
        if not held.segments or not held.segments[-1].has_room(len(token_ids)):
            segment = Segment()
            held.segments.append(segment)
            self._used[scope, id(segment)] = segment
            self.bytes += segment.bytes
        segment = held.segments[-1]
        self.bytes -= segment.bytes
        segment.add(token_ids)
        self.bytes += segment.bytes
        self._used.move_to_end((scope, id(segment)))
        while self.bytes > self._most_bytes and self._used:
            self._evict()

    def _evict(self) -> None:
        (scope, _), segment = self._used.popitem(last=False)
        held = self._scopes[scope]
        held.segments.remove(segment)
        self.bytes -= segment.bytes
        self.evictions += 1
        if not held.segments:
            del self._scopes[scope]
            self.bytes -= _SCOPE_BYTES


def _likeliest(places: list[tuple[Segment, int]], most: int) -> tuple[list[int], float]:
    """Token by token what most of the places go on with (of equals, the latest), and how many tokens that is expected
    to bring if their shares are the chances."""
    draft: list[int] = []
    score, chance = 0.0, 1.0
    total = len(places)
    while len(draft) < most:
        counts: dict[int, int] = {}
        for segment, end in places:
            if end < len(segment.ids) and (token_id := segment.ids[end]) >= 0:
                counts[token_id] = counts.get(token_id, 0) + 1
        if not counts:
            break
        token_id = max(counts, key=counts.__getitem__)
        chance *= counts[token_id] / total
        if chance < _LEAST_SHARE:
            break
        draft.append(token_id)
        score += chance
        total = counts[token_id]
        places = [
            (segment, end + 1) for segment, end in places if end < len(segment.ids) and segment.ids[end] == token_id
        ]
    return draft, score
