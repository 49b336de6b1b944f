"""What the command line says of a run, checked before anything starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from basics.names import MAX_CANDIDATES, MAX_DRAFT_TOKENS, STRATEGIES
from tandem.bench.errors import BenchError
from tandem.bench.peers import ASSISTED, LOOKUP, PLAIN
from tandem.bench.sources import BUILT_IN
from tandem.bench.variants import HISTORY, TANDEM, Load

T = TypeVar("T")

MAX_CONCURRENCY = 256
MAX_RATE = 1000.0
MAX_TOKENS = 32_768
ADAPTIVE = "adaptive"
OUT = Path("bench-results")
_WAYS = {"plain": PLAIN, "assistant": ASSISTED, "lookup": LOOKUP}


class WrongOption(BenchError):
    """An option that can't be taken; the message names it."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """`up`: flags of `tandem up`, for a Tandem of the run's own (no `url`). `drafters` None: all that the server has.

    `also`: other servers' addresses by name. Lengths of time are seconds, but for `max_minutes`.
    """

    url: str | None = None
    api_key: str | None = None
    model: str = ""
    up: Mapping[str, Any] = field(default_factory=dict)
    config: Path | None = None
    prompts: Sequence[str] = (BUILT_IN,)
    limit: int | None = None
    raw: bool = False
    max_tokens: int = 128
    ignore_eos: bool = False
    drafters: Sequence[str] | None = None
    draft_tokens: Sequence[int | None] = (None,)
    candidates: Sequence[int] = (1,)
    strategies: Sequence[str | None] = (None,)
    temperatures: Sequence[float] = (0.0,)
    loads: Sequence[Load] = (Load(),)
    repetitions: int = 1
    seed: int = 1
    also: Mapping[str, str] = field(default_factory=dict)
    transformers: Sequence[str] = ()
    transformers_model: str | None = None
    assistant_model: str | None = None
    max_minutes: float = 60.0
    timeout: float = 300.0
    ready_timeout: float = 1800.0
    out: Path = OUT
    plots: bool = True
    quick: bool = False


def quick(options: BenchOptions, given: set[str]) -> BenchOptions:
    """A run that two minutes are enough for, on the bundled model and two cores; what is `given` stays."""
    values: dict[str, Any] = {
        "limit": 3,
        "max_tokens": 32,
        "draft_tokens": (3, 7),
        "loads": (Load(), Load(3)),
    }
    given = given | ({"loads"} if given & {"concurrency", "rates"} else set())
    return replace(options, quick=True, **{name: value for name, value in values.items() if name not in given})


def numbers(flag: str, text: str, parse: Callable[[str], T], fits: Callable[[T], bool], what: str) -> list[T]:
    """A comma-separated list. Raises WrongOption."""
    found: list[T] = []
    for part in (part.strip() for part in text.split(",")):
        try:
            value = parse(part)
        except ValueError:
            raise WrongOption(f"{flag}: {part!r} is not {what}") from None
        if not fits(value):
            raise WrongOption(f"{flag}: {part} is not {what}")
        found.append(value)
    return list(dict.fromkeys(found))


def draft_tokens(text: str) -> list[int | None]:
    what = f"{ADAPTIVE} or a number from 1 to {MAX_DRAFT_TOKENS}"
    return numbers(
        "--draft-tokens",
        text,
        lambda part: None if part == ADAPTIVE else int(part),
        lambda value: value is None or 1 <= value <= MAX_DRAFT_TOKENS,
        what,
    )


def candidates(text: str) -> list[int]:
    return numbers(
        "--candidates", text, int, lambda value: 1 <= value <= MAX_CANDIDATES, f"a number from 1 to {MAX_CANDIDATES}"
    )


def temperatures(text: str) -> list[float]:
    return numbers("--temperatures", text, float, lambda value: 0 <= value <= 2, "a number from 0 to 2")


def strategies(text: str | None) -> list[str | None]:
    if text is None:
        return [None]
    return numbers("--strategies", text, str, lambda value: value in STRATEGIES, f"one of {', '.join(STRATEGIES)}")


def loads(concurrency: str | None, rates: str | None) -> list[Load]:
    """One stream if nothing is said."""
    found: list[Load] = []
    if concurrency is not None or rates is None:
        what = f"a number from 1 to {MAX_CONCURRENCY}"
        many = numbers("--concurrency", concurrency or "1", int, lambda value: 1 <= value <= MAX_CONCURRENCY, what)
        found += [Load(value) for value in many]
    if rates is not None:
        what = f"a number above 0, to {MAX_RATE:g}"
        found += [
            Load(rate=value)
            for value in numbers("--rates", rates, float, lambda v: math.isfinite(v) and 0 < v <= MAX_RATE, what)
        ]
    return found


def also(pairs: Sequence[str]) -> dict[str, str]:
    """NAME=URL of each. Raises WrongOption."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, _, url = pair.partition("=")
        if not name or not url.startswith(("http://", "https://")):
            raise WrongOption(f"--also: {pair!r} is not NAME=http://ADDRESS")
        if name in found or name in (TANDEM, *_WAYS.values()):
            raise WrongOption(f"--also: the name {name} is taken")
        found[name] = url
    return found


def transformers_ways(text: str | None) -> list[str]:
    if text is None:
        return []
    named = numbers("--transformers", text, str, lambda value: value in _WAYS, f"one of {', '.join(_WAYS)}")
    return [_WAYS[name] for name in named]


def texts(flag: str, text: str) -> list[str]:
    """A comma-separated list of names. Raises WrongOption if there is none."""
    found = [name for name in dict.fromkeys(part.strip() for part in text.split(",")) if name]
    if not found:
        raise WrongOption(f"{flag}: names nothing")
    return found


def known_drafters(card: Mapping[str, Any], wanted: Sequence[str] | None) -> list[str]:
    """Those to measure, of what /v1/models says that there are. Raises WrongOption for another."""
    there = [str(name) for name in card.get("drafters") or ()]
    if wanted is None:
        return there
    for name in wanted:
        if name not in there and not (name == HISTORY and there):
            listed = ", ".join([*there, *([HISTORY] if there else [])]) or "none"
            raise WrongOption(f"--drafters: the server has no drafter {name!r}; it has: {listed}")
    return list(wanted)
