"""Drafts from a model, on whatever engine runs it (draft_worker/engine.py)."""

from __future__ import annotations

from typing import ClassVar, Self

from draft_worker.drafter import Asked, Means
from draft_worker.engine import Drafted, DraftEngine


class ModelDrafter:
    source: ClassVar[str] = "model"

    def __init__(self, engine: DraftEngine) -> None:
        self._engine = engine

    @classmethod
    def of(cls, means: Means) -> Self | None:
        return cls(means.engine) if means.engine is not None else None

    async def go_on(self, asked: Asked, ahead: list[int], tokens: int) -> Drafted:
        """`tokens` tokens after the context and `ahead`, which is drafted already."""
        if asked.translator is not None:
            return await asked.translator.draft(self._engine, asked, ahead, tokens)
        request = asked.request.model_copy(update={"draft_tokens": tokens})
        return await self._engine.draft(request, [*asked.ids, *ahead], asked.owner, asked.deadline)

    async def draft(self, asked: Asked) -> Drafted:
        if asked.translator is not None:
            return await asked.translator.draft(self._engine, asked, [], asked.tokens)
        return await self._engine.draft(asked.request, asked.ids, asked.owner, asked.deadline)
