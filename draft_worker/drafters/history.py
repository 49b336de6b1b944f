"""Drafts from what this server answered before, to the same caller under the same salt (draft_worker/memory.py)."""

from __future__ import annotations

from typing import ClassVar, Self

from draft_worker.drafter import Asked, Copy, Means, certain, permitted
from draft_worker.engine import Drafted
from draft_worker.grammars import SessionGrammars
from draft_worker.memory import AnswerMemory
from draft_worker.segment import LONGEST_MATCH


class HistoryDrafter:
    """Drafts if the request says whose answers it may draft from, and one of them goes on here."""

    source: ClassVar[str] = "history"

    def __init__(self, memory: AnswerMemory, grammars: SessionGrammars | None) -> None:
        self._memory = memory
        self._grammars = grammars

    @classmethod
    def of(cls, means: Means) -> Self | None:
        return cls(means.memory, means.grammars) if means.memory is not None else None

    def copy(self, asked: Asked, ahead: list[int]) -> Copy | None:
        scope = asked.request.history
        if scope is None:
            return None
        tail = [*asked.ids[-LONGEST_MATCH:], *ahead]
        found = self._memory.continuation(scope, tail, asked.tokens - len(ahead))
        return Copy(found.token_ids, found.match) if found is not None else None

    async def draft(self, asked: Asked) -> Drafted | None:
        if asked.request.draft_model is not None:
            return None
        found = self.copy(asked, [])
        drafts = permitted(asked, [found.token_ids], self._grammars) if found is not None else []
        return certain(asked, drafts) if drafts else None
