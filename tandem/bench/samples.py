"""What one run leaves: an answer measured, and a group of them under one load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem.bench.variants import Load, Variant


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole answer. Times are seconds from the request; `arrivals` are those of the chunks that held text, and
    `first_tokens` the tokens in the first of them."""

    text: str
    tokens: int
    prompt_tokens: int
    finish_reason: str | None
    seconds: float
    arrivals: tuple[float, ...]
    first_tokens: int = 1
    speculation: Mapping[str, Any] | None = None
    lossless: bool | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A reply (None: it failed, and `error` says how), and what was asked: a turn of a prompt, under a seed."""

    variant: Variant
    load: Load
    prompt: str
    kind: str
    turn: int
    seed: int
    reply: Reply | None
    error: str | None = None
    right: bool | None = None

    @property
    def question(self) -> tuple[str, int, int]:
        """Two samples of one question may be compared, and their texts under one temperature too."""
        return self.prompt, self.turn, self.seed


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that ran together: the seconds from the first one's start to the last one's end, and their tokens."""

    variant: Variant
    load: Load
    seconds: float
    tokens: int
