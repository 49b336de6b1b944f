"""What is measured side by side: ways of decoding, and loads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from basics.names import AUTO

TANDEM = "tandem"
PLAIN = "plain"
HISTORY = "history"
"""`auto` under one cache salt for each repetition: it remembers the answers to the prompts before this one."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of decoding. `server` is Tandem, another address's name, or a way of transformers' in this process.

    `draft_tokens` None: γ adapts. `strategy` None: the server's own.
    """

    server: str = TANDEM
    drafter: str | None = None
    draft_tokens: int | None = None
    candidates: int = 1
    strategy: str | None = None
    temperature: float = 0.0

    @property
    def name(self) -> str:
        """Unique among the variants of one temperature."""
        if self.server != TANDEM:
            return self.server
        if self.drafter is None:
            return PLAIN
        parts = [self.drafter]
        if self.draft_tokens is not None:
            parts.append(f"γ{self.draft_tokens}")
        if self.candidates > 1:
            parts.append(f"N{self.candidates}")
        if self.strategy is not None:
            parts.append(self.strategy)
        return " ".join(parts)

    @property
    def is_plain(self) -> bool:
        return self.server == TANDEM and self.drafter is None

    def speculative(self) -> dict[str, Any]:
        """The request's block (docs/api.md)."""
        if self.drafter is None:
            return {"enabled": False}
        block: dict[str, Any] = {"draft_model": AUTO if self.drafter == HISTORY else self.drafter}
        if self.draft_tokens is not None:
            block |= {"draft_tokens": self.draft_tokens, "adaptive_speculation": False}
        if self.candidates > 1:
            block["num_candidates"] = self.candidates
        if self.strategy is not None:
            block["strategy"] = self.strategy
        return block


@dataclass(frozen=True, slots=True)
class Load:
    """How requests come: so many at any time, or (`rate`) so many a second, whatever is still running."""

    concurrency: int = 1
    rate: float | None = None

    @property
    def name(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g} requests/s"
        return "1 stream" if self.concurrency == 1 else f"{self.concurrency} streams"


@dataclass(frozen=True, slots=True)
class Sweep:
    """The values of each setting; a speculative variant is made of every combination."""

    drafters: Sequence[str]
    draft_tokens: Sequence[int | None] = (None,)
    candidates: Sequence[int] = (1,)
    strategies: Sequence[str | None] = (None,)
    temperatures: Sequence[float] = (0.0,)


def variants(sweep: Sweep, others: Sequence[str] = ()) -> list[Variant]:
    """Plain decoding at every temperature, every combination of the sweep, and each of the other servers.

    `auto` and `history` choose γ themselves and draft one candidate: of them there is one for each strategy.
    """
    found: list[Variant] = []
    for temperature in dict.fromkeys(sweep.temperatures):
        found.append(Variant(temperature=temperature))
        for drafter, gamma, candidates, strategy in itertools.product(
            sweep.drafters, sweep.draft_tokens, sweep.candidates, sweep.strategies
        ):
            chooses = drafter in (AUTO, HISTORY)
            found.append(
                Variant(
                    TANDEM, drafter, None if chooses else gamma, 1 if chooses else candidates, strategy, temperature
                )
            )
        found += [Variant(server=name, temperature=temperature) for name in others]
    return list(dict.fromkeys(found))
