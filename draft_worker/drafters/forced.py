"""What a grammar leaves no choice about, as a draft: keys, quotes and brackets of a JSON schema cost no model."""

from __future__ import annotations

from typing import ClassVar, Self

from draft_worker.drafter import Asked, Means, certain
from draft_worker.engine import Drafted
from draft_worker.grammars import SessionGrammars


class ForcedDrafter:
    source: ClassVar[str] = "grammar"

    def __init__(self, grammars: SessionGrammars) -> None:
        self._grammars = grammars

    @classmethod
    def of(cls, means: Means) -> Self | None:
        return cls(means.grammars) if means.grammars is not None else None

    async def draft(self, asked: Asked) -> Drafted | None:
        if not asked.tokens:
            await self._grammars.read(asked.request, asked.owner, asked.deadline)
            return None
        forced = self._grammars.forced(asked.request, asked.ids, asked.owner, asked.tokens)
        return certain(asked, [forced]) if forced else None
