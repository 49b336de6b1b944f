"""Which draft is worth most: the expected tokens a second of every way to draft (draft_worker/auto.py asks)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from draft_worker.yields import Kind


@dataclass(frozen=True, slots=True)
class Proposal:
    """A copied draft that could be sent, and the kind that its chances are known by."""

    kind: Kind
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """First `copied` tokens of `copy`, then `drawn` tokens of the model; neither: nothing is worth its rows.

    `value` is expected tokens a second, the target's own included; `tokens` and `seconds` are what it is the ratio of,
    `chance` that all of it is right.
    """

    value: float
    tokens: float
    seconds: float
    chance: float = 1.0
    copy: Proposal | None = None
    copied: int = 0
    drawn: int = 0


class DrawSeconds:
    """What a model takes to draw tokens: fixed + tokens · per token, by least squares, older calls fading.

    `per_token` is what a token is said to take; without it all of a call counts as its tokens', until calls of other
    lengths tell.
    """

    _FADING = 0.9

    def __init__(self, per_token: float | None = None) -> None:
        self._per_token = per_token
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """More than three times what was expected counts as that: a single hiccup means little."""
        if self._weight > 2.0:
            seconds = min(seconds, 3.0 * self.of(tokens) + 0.001)
        self._weight = self._weight * self._FADING + 1.0
        self._x += (tokens - self._x) / self._weight
        self._y += (seconds - self._y) / self._weight
        self._xx += (tokens * tokens - self._xx) / self._weight
        self._xy += (tokens * seconds - self._xy) / self._weight

    def rest(self) -> None:
        """The model was not asked: the longer ago a call was, the less it says of what one takes now."""
        self._weight *= self._FADING

    def of(self, tokens: int) -> float:
        """0 until something was observed: a drafter is tried first."""
        if not self._weight:
            return 0.0
        variance = max(0.0, self._xx - self._x * self._x)
        share = self._y / max(self._x, 1.0)
        guess = share if self._per_token is None else self._per_token
        slope = (self._xy - self._x * self._y + 0.5 * guess) / (variance + 0.5)
        slope = min(max(slope, 0.0), share)
        return max(self._y + slope * (tokens - self._x), 0.0)


@dataclass(frozen=True, slots=True)
class AfterPrepared:
    """What a model takes where the first `prepared` tokens are there already."""

    draws: DrawSeconds
    prepared: int

    def of(self, tokens: int) -> float:
        return self.draws.of(tokens - self.prepared) if tokens > self.prepared else 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds: of a token without a draft, of a target's pass over 1, 2, … draft tokens, and of a model's draws."""

    verify: Sequence[float]
    draws: DrawSeconds | AfterPrepared = field(default_factory=DrawSeconds)


def best_plan(
    copies: Sequence[tuple[Proposal, Sequence[float]]], drawn: Sequence[float], costs: Costs, must_draw: bool = False
) -> DraftPlan:
    """`copies` come with their chances, position by position; `drawn` are the model's, empty if there is none.

    `must_draw`: the best of the plans in which the model takes part, so that its chances stay known.
    """
    verify, most = costs.verify, len(costs.verify) - 1
    best = DraftPlan(0.0 if must_draw else 1.0 / verify[0], 1.0, verify[0])
    model_tokens = [0.0, *accumulate(drawn)]
    draw_seconds = [0.0, *(costs.draws.of(count) for count in range(1, len(drawn) + 1))]

    def consider(copy: Proposal | None, copied: int, tokens: float, chance: float, draws: Sequence[int]) -> None:
        nonlocal best
        for count in draws:
            if copied + count > most:
                return
            expected = 1.0 + tokens + chance * model_tokens[count]
            seconds = verify[copied + count] + draw_seconds[count]
            if expected / seconds > best.value:
                whole = chance * (drawn[count - 1] if count else 1.0)
                best = DraftPlan(expected / seconds, expected, seconds, whole, copy, copied, count)

    first = 1 if must_draw else 0
    consider(None, 0, 0.0, 1.0, range(1, len(drawn) + 1))
    for copy, chances in copies:
        tokens = list(accumulate(chances))
        last = len(chances)
        for copied in range(1, last + 1):
            draws = range(first, len(drawn) + 1) if copied == last else range(first, 1)
            consider(copy, copied, tokens[copied - 1], chances[copied - 1], draws)
    return best


def speed_of(drawn: Sequence[float], costs: Costs) -> float:
    """Of the best draft that the model alone makes, in times of plain decoding's."""
    counts = range(1, min(len(drawn), len(costs.verify) - 1) + 1)
    tokens = [1.0, *(1.0 + come for come in accumulate(drawn))]
    plain = costs.verify[0]
    return max((tokens[count] * plain / (costs.verify[count] + costs.draws.of(count)) for count in counts), default=0.0)


def ceiling(verify: Sequence[float], draw_seconds: float) -> float:
    """Speed of a model's best draft if every token of it were right, in times of plain decoding's."""
    counts = range(1, len(verify))
    return max(((1 + count) * verify[0] / (verify[count] + count * draw_seconds) for count in counts), default=0.0)


def extended(plan: DraftPlan, length: int, copy: Sequence[float], costs: Costs) -> int:
    """How many tokens of a copy, whose chances are given, to append to a draft of `length` tokens made by `plan`."""
    best_value, best_count = plan.value, 0
    for count, tokens in enumerate(accumulate(copy), start=1):
        if length + count >= len(costs.verify):
            break
        seconds = plan.seconds + costs.verify[length + count] - costs.verify[length]
        value = (plan.tokens + plan.chance * tokens) / seconds
        if value > best_value:
            best_value, best_count = value, count
    return best_count
