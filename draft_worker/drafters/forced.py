"""What a grammar leaves no choice about, as a draft: keys, quotes and brackets of a JSON schema cost no model."""

from __future__ import annotations

from typing import ClassVar, Self

from draft_worker.drafter import STATED, Asked, Copy, Means, certain
from draft_worker.engine import Drafted
from draft_worker.grammars import SessionGrammars


class ForcedDrafter:
    """Drafts for `auto`, and for everybody if there is no model, which keeps to the grammar itself."""

    source: ClassVar[str] = "grammar"

    def __init__(self, grammars: SessionGrammars, only_for_auto: bool) -> None:
        self._grammars = grammars
        self._only_for_auto = only_for_auto

    @classmethod
    def of(cls, means: Means) -> Self | None:
        return cls(means.grammars, means.engine is not None) if means.grammars is not None else None

    def copy(self, asked: Asked, ahead: list[int]) -> Copy | None:
        ids = [*asked.ids, *ahead] if ahead else asked.ids
        forced = self._grammars.forced(asked.request, ids, asked.owner, asked.tokens - len(ahead))
        return Copy(forced, STATED) if forced else None

    async def draft(self, asked: Asked) -> Drafted | None:
        if not asked.tokens:
            await self._grammars.read(asked.request, asked.owner, asked.deadline)
            return None
        if self._only_for_auto:
            return None
        forced = self._grammars.forced(asked.request, asked.ids, asked.owner, asked.tokens)
        return certain(asked, [forced]) if forced else None
