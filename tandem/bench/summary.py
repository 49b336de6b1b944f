"""Samples and groups made into one row for every variant under every load."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tandem.bench.samples import Group, Sample
from tandem.bench.statistics import Acceptance, Pair, Ratio, acceptance, median, quantile, speed_up, spread
from tandem.bench.variants import Load, Variant


@dataclass(frozen=True, slots=True)
class Row:
    """Latencies in seconds, as quantiles over requests (`itl`: over gaps between chunks). nan: nothing to tell from.

    `tokens_per_second` is of all requests together, prompts included; `speed_up` is over plain decoding under the same
    load and temperature, `extremes` are those of single prompts. `same`, `compared`: texts equal to plain decoding's,
    of how many (None: nothing that could be equal). `right` of `judged` answers are right.
    """

    variant: Variant
    load: Load
    requests: int
    failures: int
    tokens: int
    tokens_per_second: float
    ttft: tuple[float, float, float]
    itl: tuple[float, float, float]
    e2e: tuple[float, float, float]
    tpot: float
    speed_up: Ratio
    extremes: tuple[float, float]
    acceptance: Acceptance
    same: int | None
    compared: int
    right: int
    judged: int


QUANTILES = (0.5, 0.9, 0.99)


def rows(samples: Sequence[Sample], groups: Sequence[Group]) -> list[Row]:
    """In the order in which the variants were first measured, plain decoding before the rest of its temperature."""
    cells = dict.fromkeys((sample.load, sample.variant) for sample in samples)
    loads = list(dict.fromkeys(load for load, _ in cells))
    temperatures = list(dict.fromkeys(variant.temperature for _, variant in cells))
    order = sorted(
        cells,
        key=lambda cell: (loads.index(cell[0]), temperatures.index(cell[1].temperature), not cell[1].is_plain),
    )
    return [_row(load, variant, samples, groups) for load, variant in order]


def gaps(sample: Sample) -> list[float]:
    """Inter-token latency as vLLM's and AIPerf's chunk-wise one: seconds between chunks."""
    arrivals = sample.reply.arrivals if sample.reply is not None else ()
    return [later - earlier for earlier, later in pairwise(arrivals)]


def pairs(samples: Iterable[Sample], variant: Variant, load: Load) -> dict[Hashable, list[Pair]]:
    """What this variant and plain decoding both answered, by prompt."""
    base = Variant(temperature=variant.temperature)
    plain = {s.question: s for s in samples if (s.variant, s.load) == (base, load) and s.reply is not None}
    found: dict[Hashable, list[Pair]] = {}
    for sample in samples:
        if (sample.variant, sample.load) != (variant, load) or sample.reply is None:
            continue
        other = plain.get(sample.question)
        if other is not None and other.reply is not None and other.reply.tokens and sample.reply.tokens:
            found.setdefault(sample.prompt, []).append(
                Pair(other.reply.seconds, other.reply.tokens, sample.reply.seconds, sample.reply.tokens)
            )
    return found


def differing(samples: Sequence[Sample], variant: Variant, load: Load) -> tuple[list[tuple[Sample, Sample]], int]:
    """(Plain decoding's sample, this variant's) whose texts differ, and how many were compared.

    Compared are the answers of which the server says that they have the target's own text; those of other programs, at
    temperature 0.
    """
    base = Variant(temperature=variant.temperature)
    plain = {s.question: s for s in samples if (s.variant, s.load) == (base, load) and s.reply is not None}
    found, compared = [], 0
    for sample in samples:
        other = plain.get(sample.question)
        if (sample.variant, sample.load) != (variant, load) or sample.reply is None or other is None:
            continue
        if not _comparable(sample) or other.reply is None:
            continue
        compared += 1
        if other.reply.text != sample.reply.text:
            found.append((other, sample))
    return found, compared


def _comparable(sample: Sample) -> bool:
    if sample.variant.temperature == 0:
        return sample.variant.strategy not in ("threshold",) or bool(sample.reply and sample.reply.lossless)
    return sample.variant.strategy in (None, "deterministic") and bool(sample.reply and sample.reply.lossless)


def _row(load: Load, variant: Variant, samples: Sequence[Sample], groups: Sequence[Group]) -> Row:
    own = [sample for sample in samples if (sample.load, sample.variant) == (load, variant)]
    replies = [sample.reply for sample in own if sample.reply is not None]
    together = [group for group in groups if (group.load, group.variant) == (load, variant)]
    seconds = sum(group.seconds for group in together)
    paired = pairs(samples, variant, load)
    differences, compared = differing(samples, variant, load)
    judged = [sample.right for sample in own if sample.right is not None]
    return Row(
        variant=variant,
        load=load,
        requests=len(own),
        failures=len(own) - len(replies),
        tokens=sum(reply.tokens for reply in replies),
        tokens_per_second=sum(group.tokens for group in together) / seconds if seconds else math.nan,
        ttft=_quantiles([reply.arrivals[0] for reply in replies if reply.arrivals]),
        itl=_quantiles([gap for sample in own for gap in gaps(sample)]),
        e2e=_quantiles([reply.seconds for reply in replies]),
        tpot=median(
            [
                (reply.arrivals[-1] - reply.arrivals[0]) / (reply.tokens - reply.first_tokens)
                for reply in replies
                if len(reply.arrivals) > 1 and reply.tokens > reply.first_tokens
            ]
        ),
        speed_up=speed_up(paired),
        extremes=spread(paired),
        acceptance=acceptance(reply.speculation for reply in replies),
        same=compared - len(differences) if compared else None,
        compared=compared,
        right=sum(judged),
        judged=len(judged),
    )


def _quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    p50, p90, p99 = (quantile(values, q) for q in QUANTILES)
    return p50, p90, p99
