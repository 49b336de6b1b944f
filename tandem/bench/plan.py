"""The order in which a run asks: every variant in turn within every group of prompts, so that all meet one machine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tandem.bench.prompts import Prompt
from tandem.bench.variants import Load, Variant

GROUP_FACTOR = 2
"""A group under concurrency C is this many times C prompts, so that C run most of the time."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt under one seed; `at` is the second of the group at which it comes, under a rate."""

    prompt: Prompt
    seed: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """What is to be run next: these asks, this way."""

    variant: Variant
    load: Load
    asks: tuple[Ask, ...]
    repetition: int


def turns(
    variants: Sequence[Variant], loads: Sequence[Load], prompts: Sequence[Prompt], repetitions: int, seed: int
) -> Iterator[Turn]:
    """Lazily, all of it. Variants of one group follow each other, another one first each time."""
    rotation = 0
    for repetition in range(repetitions):
        for load in loads:
            for asks in groups(prompts, load, repetition, seed):
                first = rotation % len(variants)
                rotation += 1
                for variant in (*variants[first:], *variants[:first]):
                    yield Turn(variant, load, asks, repetition)


def groups(prompts: Sequence[Prompt], load: Load, repetition: int, seed: int) -> list[tuple[Ask, ...]]:
    """All prompts once; under a concurrency, more than once if there are fewer than a group needs."""
    if load.rate is not None:
        # A Poisson process, the same for every variant.
        draw = random.Random(f"{seed} {repetition} {load.rate}")
        at, asks = 0.0, []
        for number, prompt in enumerate(prompts):
            at += draw.expovariate(load.rate) if number else 0.0
            asks.append(Ask(prompt, seed + repetition, at))
        return [tuple(asks)]
    size = 1 if load.concurrency == 1 else GROUP_FACTOR * load.concurrency
    rounds = -(-max(size, len(prompts)) // len(prompts))
    # A prompt's copies have seeds of their own, apart from those of any repetition.
    copies = [Ask(prompt, seed + repetition + 1000 * copy) for copy in range(rounds) for prompt in prompts]
    copies = copies[: max(size, len(prompts))]
    cut = [tuple(copies[start : start + size]) for start in range(0, len(copies), size)]
    if len(cut) > 1 and len(cut[-1]) < load.concurrency:
        *cut, before, rest = cut
        cut.append(before + rest)
    return cut
