"""Drafts from what this server answered before, to the same caller under the same salt (draft_worker/memory.py)."""

from __future__ import annotations

from typing import ClassVar, Self

from draft_worker.drafter import Asked, Means, certain, permitted
from draft_worker.engine import Drafted
from draft_worker.grammars import SessionGrammars
from draft_worker.memory import AnswerMemory


class HistoryDrafter:
    """Drafts if the request says whose answers it may draft from, and one of them goes on here."""

    source: ClassVar[str] = "history"

    def __init__(self, memory: AnswerMemory, grammars: SessionGrammars | None) -> None:
        self._memory = memory
        self._grammars = grammars

    @classmethod
    def of(cls, means: Means) -> Self | None:
        return cls(means.memory, means.grammars) if means.memory is not None else None

    async def draft(self, asked: Asked) -> Drafted | None:
        scope = asked.request.history
        if scope is None or not asked.tokens or asked.request.draft_model is not None:
            return None
        found = self._memory.continuation(scope, asked.ids, asked.tokens)
        drafts = permitted(asked, [found.token_ids], self._grammars) if found is not None else []
        return certain(asked, drafts) if drafts else None
