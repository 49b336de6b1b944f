"""How many requests a target serves at a time, and whether drafts are made for any of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Load:
    """Of one target, by this gateway alone."""

    streams: int = 0
    """Requests that are being served."""
    speculating: int = 0
    """Those of them that are in a round with a draft."""
    rounds: int = 0
    """Rounds with drafts that have ended."""

    @contextmanager
    def drafting(self) -> Iterator[None]:
        """One more request asks for a draft, or has one verified."""
        self.speculating += 1
        try:
            yield
        finally:
            self.speculating -= 1

    def beside_drafts(self, since: int) -> bool:
        """Whether a round with a draft is or was under way since there were so many."""
        return self.speculating > 0 or self.rounds != since
