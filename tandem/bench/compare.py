"""Two runs side by side: what is faster in the second, and whether it said the same."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tandem.bench.results import Results, read
from tandem.bench.samples import Sample
from tandem.bench.statistics import Pair, Ratio, speed_up
from tandem.bench.summary import Row, rows
from tandem.bench.table import interval, number


@dataclass(frozen=True, slots=True)
class Change:
    """One variant under one load in both runs. `ratio`: tokens/s of the second over the first's, on the prompts that
    both have; `same` of `compared` texts are equal."""

    first: Row
    second: Row
    ratio: Ratio
    same: int
    compared: int


def changes(first: Results, second: Results) -> list[Change]:
    """Of what both runs measured, in the first one's order."""
    others = {(row.variant, row.load): row for row in rows(second.samples, second.groups)}
    found = []
    for row in rows(first.samples, first.groups):
        other = others.get((row.variant, row.load))
        if other is not None:
            before, after = (_questions(of.samples, row) for of in (first, second))
            paired, same, compared = _paired(before, after)
            found.append(Change(row, other, speed_up(paired), same, compared))
    return found


def run_compare(first: Path, second: Path, console: Console) -> int:
    """Print the comparison. Returns 1 where the two have nothing in common. Raises BenchError for a file."""
    a, b = read(first), read(second)
    for warning in cautions(a.about, b.about):
        console.print(f"note: {warning}", markup=False, soft_wrap=True)
    found = changes(a, b)
    if not found:
        console.print("The two runs have no variant under one load and temperature in common.")
        return 1
    table = Table(title=f"a = {first.name}, b = {second.name}", title_justify="left")
    for place, column in enumerate(("", "load", "tokens/s a", "b", "b / a (95%)", "TTFT a", "b", "ITL p50 a", "b")):
        table.add_column(column, justify="right" if place > 1 else "left", no_wrap=place == 0)
    for column in ("accepted a", "b", "speed-up a", "b", "same text"):
        table.add_column(column, justify="right")
    for change in found:
        table.add_row(*_cells(change))
    console.print(table)
    console.print("Latencies in ms. b / a: tokens/s on the prompts that both runs asked; above 1, b is faster.")
    return 0


def cautions(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """What beside the code differs, so that the numbers may."""
    found = []
    for part, keys in (("machine", ("processor", "cores")), ("server", ("model", "root"))):
        for key in keys:
            one, other = a[part].get(key), b[part].get(key)
            if one != other:
                found.append(f"{part}: {key} differs: {one} and {other}")
    for key in sorted(set(a["options"]) & set(b["options"]) & {"max_tokens", "seed", "ignore_eos"}):
        if a["options"][key] != b["options"][key]:
            found.append(f"{key} differs: {a['options'][key]} and {b['options'][key]}")
    return found


def _questions(samples: Any, row: Row) -> dict[Hashable, Sample]:
    return {
        sample.question: sample
        for sample in samples
        if (sample.variant, sample.load) == (row.variant, row.load) and sample.reply is not None
    }


def _paired(
    before: Mapping[Hashable, Sample], after: Mapping[Hashable, Sample]
) -> tuple[dict[Hashable, list[Pair]], int, int]:
    found: dict[Hashable, list[Pair]] = {}
    same = compared = 0
    for question, sample in before.items():
        other = after.get(question)
        if other is None or sample.reply is None or other.reply is None:
            continue
        compared += 1
        same += sample.reply.text == other.reply.text
        if sample.reply.tokens and other.reply.tokens:
            found.setdefault(sample.prompt, []).append(
                Pair(sample.reply.seconds, sample.reply.tokens, other.reply.seconds, other.reply.tokens)
            )
    return found, same, compared


def _cells(change: Change) -> list[str]:
    a, b = change.first, change.second
    name = a.variant.name + (f", T {a.variant.temperature:g}" if a.variant.temperature else "")
    return [
        name,
        a.load.name,
        number(a.tokens_per_second, 1),
        number(b.tokens_per_second, 1),
        interval(change.ratio),
        number(a.ttft[0], 0, 1e3),
        number(b.ttft[0], 0, 1e3),
        number(a.itl[0], 0, 1e3),
        number(b.itl[0], 0, 1e3),
        number(a.acceptance.rate),
        number(b.acceptance.rate),
        number(a.speed_up.value),
        number(b.speed_up.value),
        f"{change.same} of {change.compared}",
    ]
