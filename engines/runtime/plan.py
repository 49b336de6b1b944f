"""What goes into the next forward pass: every short feed whole, and of long prompts as much as a budget allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from engines.runtime.pass_seconds import PassSeconds

SHORT_TOKENS = 16
"""A feed with no more context than this is a running stream's (or a short prompt) and never waits."""
_SMALLEST_SHARE = 16
_SLOWDOWN = 2.0
_ENOUGH = 24.0
"""A pass whose tokens take so many times what any pass takes is long enough: more of them would save a twenty-fourth at
most, and those in it would wait for each other."""
_SMOOTHING = 0.2


def split_budget(remaining: Sequence[int], budget: int) -> list[int]:
    """How many context tokens of each long feed to take, in order of turn: equal shares, then what they leave over.

    A prompt that needs less than its share finishes, so a flood of long prompts does not hold up a middling one.
    """
    share = max(_SMALLEST_SHARE, budget // max(1, len(remaining)))
    taken = [0] * len(remaining)
    for most in (share, budget):
        for i, tokens in enumerate(remaining):
            more = min(tokens - taken[i], most, budget)
            taken[i] += more
            budget -= more
    return taken


class PromptBudget:
    """The prompt tokens a pass may carry: `largest` alone, less beside running streams, which must not stall.

    Beside them the budget is what is expected to take `_SLOWDOWN` times as long as a pass without prompts, from
    measured times of either kind.
    """

    def __init__(self, largest: int, measured: Mapping[int, float] | None = None) -> None:
        """`measured`: seconds of a pass by its tokens, where they are known."""
        self._largest = largest
        self.passes = PassSeconds(measured or {})
        """Of passes without prompts."""
        self._short_pass: float | None = None
        self._prompt_token: float | None = None

    def budget(self, streams: bool) -> int:
        if not streams or self._short_pass is None or self._prompt_token is None:
            return self._largest
        tokens = int(_SLOWDOWN * self._short_pass / self._prompt_token)
        return max(_SMALLEST_SHARE, min(self._largest, tokens))

    @property
    def enough(self) -> float:
        """Tokens of a pass beyond which those who have just come wait for the next one; inf where that is not known.

        Where tokens cost much and passes little (few cores; a GPU that is full), a pass for all would end no sooner for
        anybody than one for each in turn, and all of them would draft at the same time, the target idle meanwhile.
        """
        fixed, per_token = self.passes.fixed, self.passes.per_token
        return _ENOUGH * fixed / per_token if self.passes.known and per_token > 0.0 else math.inf

    def record(self, seconds: float, short_tokens: int, prompt_tokens: int) -> None:
        """One pass: how long it took, and what was in it."""
        if prompt_tokens == 0:
            self._short_pass = _smoothed(self._short_pass, seconds)
            self.passes.observe(short_tokens, seconds)
        elif prompt_tokens > short_tokens:
            base = self._short_pass or 0.0
            share = prompt_tokens / (prompt_tokens + short_tokens)
            own = seconds - base if short_tokens and seconds > base else seconds * share
            self._prompt_token = _smoothed(self._prompt_token, own / prompt_tokens)


def _smoothed(old: float | None, new: float) -> float:
    return new if old is None else old + _SMOOTHING * (new - old)
