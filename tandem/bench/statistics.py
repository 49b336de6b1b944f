"""Numbers from measurements, free of I/O: quantiles, speed-ups with bootstrap intervals, acceptance by position."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

RESAMPLES = 2000
CONFIDENCE = 0.95


def median(values: Sequence[float]) -> float:
    """nan without values."""
    return statistics.median(values) if values else math.nan


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a share `q` of the values does not exceed; nan without values."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class Ratio:
    """`value` lies in `low` to `high` with 95% confidence; these are nan if a single cluster can't tell."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, slots=True)
class Pair:
    """The same work done two ways: seconds and tokens of each."""

    base_seconds: float
    base_tokens: float
    seconds: float
    tokens: float


def speed_up(pairs: Mapping[Hashable, Sequence[Pair]], resamples: int = RESAMPLES, seed: int = 0) -> Ratio:
    """How many times the tokens a second of the base, all pairs taken together, and its percentile-bootstrap interval.

    `pairs` come by prompt. Prompts are resampled, with all their pairs, since what differs between prompts is what
    makes a speed-up uncertain (Efron and Tibshirani, *An Introduction to the Bootstrap*, 1993, chapters 8 and 13). The
    intervals are too narrow for a handful of prompts, as all bootstrap intervals are.
    """
    clusters = [_total(found) for found in pairs.values() if found]
    if not clusters:
        return Ratio(math.nan)
    value = _ratio(clusters)
    if len(clusters) < 2:
        return Ratio(value)
    draw = random.Random(seed)
    found = sorted(_ratio(draw.choices(clusters, k=len(clusters))) for _ in range(resamples))
    tail = (1 - CONFIDENCE) / 2
    return Ratio(value, quantile(found, tail), quantile(found, 1 - tail))


def spread(pairs: Mapping[Hashable, Sequence[Pair]]) -> tuple[float, float]:
    """The speed-up of the prompt that gains least, and of the one that gains most."""
    each = [_ratio([_total(found)]) for found in pairs.values() if found]
    return (min(each), max(each)) if each else (math.nan, math.nan)


def _total(pairs: Sequence[Pair]) -> Pair:
    return Pair(
        sum(pair.base_seconds for pair in pairs),
        sum(pair.base_tokens for pair in pairs),
        sum(pair.seconds for pair in pairs),
        sum(pair.tokens for pair in pairs),
    )


def _ratio(clusters: Sequence[Pair]) -> float:
    all_of_them = _total(clusters)
    base, other = all_of_them.base_seconds * all_of_them.tokens, all_of_them.seconds * all_of_them.base_tokens
    return base / other if other else math.nan


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts of many answers together. `histogram[j]`: rounds with a draft that accepted j of its tokens."""

    rounds: int
    drafted: int
    accepted: int
    histogram: tuple[int, ...]

    @property
    def rate(self) -> float:
        """Accepted over drafted tokens; nan if none was drafted."""
        return self.accepted / self.drafted if self.drafted else math.nan

    @property
    def length(self) -> float:
        """Tokens of a round with a draft, the target's own included; nan without such rounds."""
        return 1 + self.accepted / self.rounds if self.rounds else math.nan

    @property
    def by_position(self) -> list[float]:
        """The share of the rounds whose token at each place of the draft, from the first, was accepted; empty without.

        A draft shorter than that place counts as not accepted there, as in vLLM's per-position rate.
        """
        if not self.rounds:
            return []
        return [sum(self.histogram[place + 1 :]) / self.rounds for place in range(len(self.histogram) - 1)]


def acceptance(answers: Iterable[Mapping[str, object] | None]) -> Acceptance:
    """The sums over `metrics.speculative_decoding` of answers (docs/api.md); None: an answer without."""
    rounds = drafted = accepted = 0
    histogram: list[int] = []
    for found in answers:
        counts = found or {}
        rounds += _count(counts.get("num_spec_steps"))
        drafted += _count(counts.get("num_draft_tokens"))
        accepted += _count(counts.get("num_accepted_draft_tokens"))
        own = counts.get("acceptance_histogram")
        for place, many in enumerate(own if isinstance(own, Sequence) else ()):
            histogram += [0] * (place + 1 - len(histogram))
            histogram[place] += _count(many)
    return Acceptance(rounds, drafted, accepted, tuple(histogram))


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
