"""Prompt lookup: what followed the same n-gram the last time (Saxena: *Prompt lookup decoding*, 2023).

The index is that of LZ77 compressors: every position points to the previous end of the same shortest n-gram, so that a
token is indexed, and forgotten, in O(1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from basics.names import LOOKUP
from draft_worker.drafter import Asked, Copy, Means, certain, permitted
from draft_worker.engine import Drafted
from draft_worker.grammars import SessionGrammars

MOST_OCCURRENCES = 1024
"""Occurrences that are looked at, most recent first; bounds the time on adversarial text."""


class LookupDrafter:
    """Drafts if it is asked for by name, and for everybody if there is no model. It then always answers."""

    source: ClassVar[str] = LOOKUP

    def __init__(self, sizes: tuple[int, int], only_by_name: bool, grammars: SessionGrammars | None) -> None:
        """`sizes`: shortest and longest n-gram."""
        self._sizes = sizes
        self._only_by_name = only_by_name
        self._grammars = grammars

    @classmethod
    def of(cls, means: Means) -> Self | None:
        sizes = means.config.lookup_min_ngram, means.config.lookup_max_ngram
        return cls(sizes, means.engine is not None, means.grammars)

    async def draft(self, asked: Asked) -> Drafted | None:
        if self._only_by_name and asked.request.draft_model != LOOKUP:
            return None
        index = self._index(asked)
        found = index.continuations(asked.ids, asked.tokens, asked.request.num_candidates)
        return certain(asked, permitted(asked, found, self._grammars))

    def copy(self, asked: Asked, ahead: list[int]) -> Copy | None:
        index = self._index(asked)
        ids = asked.ids
        if ahead:
            ids = [*ids, *ahead]
            index.extend(ids)
        found = index.continuations(ids, asked.tokens - len(ahead), 1)
        match = index.match(ids) if found else 0
        if ahead:
            index.truncate(len(asked.ids))
        return Copy(found[0], match) if found else None

    def _index(self, asked: Asked) -> LookupIndex:
        """The session's, of its whole context."""
        index: LookupIndex | None = asked.session.state.get(self.source)
        if index is None:
            index = asked.session.state[self.source] = LookupIndex(*self._sizes)
        index.truncate(asked.session.settle(self.source))
        index.extend(asked.ids)
        return index


class LookupIndex:
    """Where every n-gram of `min_ngram` tokens ended, for one growing sequence."""

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._min = min_ngram
        self._max = max_ngram
        self._keys: list[tuple[int, ...]] = []
        self._previous: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}

    def __len__(self) -> int:
        """How many tokens are indexed."""
        return len(self._keys)

    def truncate(self, length: int) -> None:
        """Forget every token from `length` on."""
        while len(self._keys) > length:
            key, previous = self._keys.pop(), self._previous.pop()
            if previous < 0:
                self._latest.pop(key, None)
            else:
                self._latest[key] = previous

    def extend(self, ids: Sequence[int]) -> None:
        """Index `ids` from the first that is not indexed yet on; those before must be as they were."""
        size = self._min
        for end in range(len(self._keys) + 1, len(ids) + 1):
            key = tuple(ids[max(0, end - size) : end])
            self._keys.append(key)
            self._previous.append(self._latest.get(key, -1))
            self._latest[key] = end

    def continuations(self, ids: Sequence[int], tokens: int, candidates: int) -> list[list[int]]:
        """What followed the longest suffixes of `ids` (all of it indexed) that occurred before, `tokens` tokens each.

        Longest first, then most recent; `max_ngram` counts as long as anything longer. If an occurrence reaches
        the end of `ids`, its continuation goes on with itself, as in a repetition.
        """
        found: list[tuple[int, int]] = []
        if len(ids) < self._min or tokens < 1:
            return []
        end = self._previous[len(ids) - 1]
        for _ in range(MOST_OCCURRENCES):
            if end < self._min:
                break
            length = self._match(ids, end)
            found.append((length, end))
            if length == self._max and candidates == 1:
                break
            end = self._previous[end - 1]
        found.sort(key=lambda match: -match[0])
        drafts: list[list[int]] = []
        for _, end in found:
            draft = list(ids[end : end + tokens])
            period = len(draft)
            while len(draft) < tokens:
                draft.append(draft[len(draft) - period])
            if draft not in drafts:
                drafts.append(draft)
                if len(drafts) == candidates:
                    break
        return drafts

    def match(self, ids: Sequence[int]) -> int:
        """The length of the longest match that `continuations` goes by, `max_ngram` at most; 0 without any."""
        longest, end = 0, self._previous[len(ids) - 1] if len(ids) >= self._min else 0
        for _ in range(MOST_OCCURRENCES):
            if end < self._min or longest == self._max:
                break
            longest = max(longest, self._match(ids, end))
            end = self._previous[end - 1]
        return longest

    def _match(self, ids: Sequence[int], end: int) -> int:
        """How many tokens before `end` equal those before the end of `ids`, from `min_ngram` to `max_ngram`."""
        length, most = self._min, min(self._max, end)
        last = len(ids)
        while length < most and ids[end - length - 1] == ids[last - length - 1]:
            length += 1
        return length
