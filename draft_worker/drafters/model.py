"""Drafts from a model, on whatever engine runs it (draft_worker/engine.py); some are prepared (docs/lookahead.md)."""

from __future__ import annotations

import time
from typing import ClassVar, Self

from basics.names import CACHE, MODEL
from draft_worker.drafter import Asked, Means, certain, joined
from draft_worker.engine import Drafted, DraftEngine
from draft_worker.lookahead import Known, Lookahead, candidate_of
from protocol.messages import DraftPart, DraftTimings


class ModelDrafter:
    source: ClassVar[str] = MODEL

    def __init__(self, engine: DraftEngine, lookahead: Lookahead | None = None) -> None:
        self._engine = engine
        self._lookahead = lookahead

    @classmethod
    def of(cls, means: Means) -> Self | None:
        return cls(means.engine, means.lookahead) if means.engine is not None else None

    def prepared(self, asked: Asked) -> int:
        """How many tokens after the context cost nothing now, as far as γ may follow from that."""
        return self._lookahead.counted_on(asked) if self._lookahead is not None else 0

    def there(self, asked: Asked, ahead: list[int], tokens: int) -> tuple[Drafted, bool]:
        """As `go_on`, of what is prepared alone; and whether that is all of it."""
        known = self._lookahead.known(asked, ahead) if self._lookahead is not None else None
        if known is None:
            return certain(asked, []), tokens == 0
        found = _of(known, asked, tokens)
        return found, found.prepared == tokens or known.ends

    async def go_on(self, asked: Asked, ahead: list[int], tokens: int) -> Drafted:
        """`tokens` tokens after the context and `ahead`, which is drafted already."""
        if asked.translator is not None:
            return await asked.translator.draft(self._engine, asked, ahead, tokens)
        known = self._lookahead.known(asked, ahead) if self._lookahead is not None else None
        if known is None or (len(known.token_ids) < tokens and not known.ends):
            await self._until_free(asked)  # it may have grown meanwhile
            known = self._lookahead.known(asked, ahead) if self._lookahead is not None else None
        if known is None:
            return await self._draw(asked, ahead, tokens)
        there = _of(known, asked, tokens)
        first, count = there.candidates[0], there.prepared
        if count == tokens or known.ends:
            return there
        more = await self._draw(asked, [*ahead, *first.token_ids], tokens - count)
        places = [*there.places, *more.places]
        return Drafted([joined([first], more.candidates)], more.cached_tokens, more.timings, count, places)

    async def draft(self, asked: Asked) -> Drafted:
        if asked.translator is not None:
            return await asked.translator.draft(self._engine, asked, [], asked.tokens)
        if asked.tokens and asked.request.num_candidates == 1:
            return await self.go_on(asked, [], asked.tokens)
        await self._until_free(asked)
        return await self._engine.draft(asked.request, asked.ids, asked.owner, asked.deadline)

    async def _draw(self, asked: Asked, ahead: list[int], tokens: int) -> Drafted:
        request = asked.request.model_copy(update={"draft_tokens": tokens})
        return await self._engine.draft(request, [*asked.ids, *ahead], asked.owner, asked.deadline)

    async def _until_free(self, asked: Asked) -> None:
        if self._lookahead is not None:
            await self._lookahead.free(asked.session)


def _of(known: Known, asked: Asked, tokens: int) -> Drafted:
    """The first `tokens` of what is prepared, or all of it."""
    first = candidate_of(known.token_ids[:tokens], known.q[:tokens], asked.request.want_q)
    count = len(first.token_ids)
    total = (time.perf_counter() - asked.began) * 1e3
    timings = DraftTimings(queue_ms=0.0, forward_ms=0.0, sample_ms=0.0, total_ms=total)
    return Drafted([first], len(asked.ids), timings, count, known.places[:count])


def model_parts(drafted: Drafted) -> list[DraftPart]:
    """What of a first candidate was prepared, and what was drawn when it was asked for."""
    tokens = len(drafted.candidates[0].token_ids)
    parts = [(CACHE, drafted.prepared), (MODEL, tokens - drafted.prepared)]
    return [DraftPart(source=source, tokens=count) for source, count in parts if count]
