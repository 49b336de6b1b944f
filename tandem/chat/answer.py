"""An answer on its way: pieces of text with who made them, and the figures that go with them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Piece:
    """`origin` is that of `tandem.rounds` (docs/api.md); "" where the server did not say."""

    text: str
    origin: str = ""
    thought: bool = False


@dataclass(slots=True)
class Progress:
    """What the chunks so far add up to. Times are time.monotonic()."""

    asked: float = field(default_factory=time.monotonic)
    first: float | None = None
    last: float = 0.0
    first_tokens: int = 0
    tokens: int = 0
    drafted: int = 0
    drafts: int = 0
    origins: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    draft_tokens: int | None = None
    finish_reason: str | None = None
    text: str = ""
    seed: int | None = None

    def take(self, chunk: dict[str, Any]) -> list[Piece]:
        """Counts a chunk; returns its text."""
        tandem = chunk.get("tandem") or {}
        self.seed = tandem.get("seed", self.seed)
        rounds = tandem.get("rounds") or []
        for made in (one for one in rounds if "tokens" in one):
            self._count(made)
        usage = chunk.get("usage")
        if usage:
            self.tokens = usage["completion_tokens"]
        if not chunk["choices"]:
            return []
        choice = chunk["choices"][0]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        delta = choice.get("delta") or {}
        thought = delta.get("reasoning_content")
        text = thought or delta.get("content") or ""
        if thought is None:
            self.text += text
        pieces = [Piece(one["text"], one["origin"], bool(thought)) for made in rounds for one in made["pieces"]]
        return pieces or ([Piece(text, thought=bool(thought))] if text else [])

    def _count(self, made: dict[str, Any]) -> None:
        now = time.monotonic()
        tokens = made["tokens"]
        if self.first is None:
            self.first = now
            self.first_tokens = len(tokens)
        self.last = now
        self.tokens += len(tokens)
        self.drafted += made["draft_tokens"]
        self.drafts += made["draft_tokens"] > 0
        self.draft_tokens = made["draft_tokens"]
        self.origins.update(token["origin"] for token in tokens)
        self.sources.update(token["source"] for token in tokens if "source" in token)

    @property
    def tokens_a_second(self) -> float | None:
        """Of those after the first round's, which waited for the prompt."""
        if self.first is None or self.last <= self.first:
            return None
        return (self.tokens - self.first_tokens) / (self.last - self.first)

    @property
    def acceptance(self) -> float | None:
        return self.origins["draft"] / self.drafted if self.drafted else None

    def line(self) -> str:
        """The figures, in one line."""
        parts = [f"{self.tokens} tokens"]
        if (speed := self.tokens_a_second) is not None:
            parts.append(f"{speed:.1f} tokens/s")
        if (acceptance := self.acceptance) is not None:
            parts.append(f"acceptance {acceptance:.0%} ({self.origins['draft']} of {self.drafted})")
        if self.draft_tokens is not None:
            mean = f" (mean {self.drafted / self.drafts:.1f})" if self.drafts else ""
            parts.append(f"γ {self.draft_tokens}{mean}")
        if self.first is not None:
            parts.append(f"first after {self.first - self.asked:.2f} s")
        return " · ".join(parts)
