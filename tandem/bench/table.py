"""What a run found, as tables in the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table

from tandem.bench.statistics import Ratio
from tandem.bench.summary import Row

_WIDTH_OF_FILES = 150


def console() -> Console:
    """Standard output; wide enough for the tables where it is no terminal."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=_WIDTH_OF_FILES)


def print_rows(out: Console, rows: Sequence[Row]) -> None:
    """One table for each load and temperature."""
    has_answers = any(row.judged for row in rows)
    for (load, temperature), found in groupby(rows, lambda row: (row.load.name, row.variant.temperature)):
        some = list(found)
        table = Table(title=f"{load}, temperature {temperature:g}", title_justify="left")
        columns = ["", "tokens/s", "speed-up (95%)", "TTFT p50", "ITL p50 / p99", "E2E p50 / p90 / p99"]
        columns += ["accepted", "length", "same text", *(["right"] if has_answers else []), "failed"]
        for number, column in enumerate(columns):
            table.add_column(column, justify="right" if number else "left", no_wrap=number == 0)
        for row in some:
            table.add_row(*_cells(row, has_answers))
        out.print(table)
    out.print("Latencies in ms. Speed-up: tokens/s over plain decoding's, whole requests; interval over prompts.")


def print_kinds(out: Console, kinds: Mapping[str, Sequence[Row]]) -> None:
    """Speed-up by kind of prompt, for the first load: what is drafted depends on what is asked."""
    if len(kinds) < 2:
        return
    first = next(iter(kinds.values()))
    named = list(dict.fromkeys((row.variant, row.load) for row in first if not row.variant.is_plain))
    table = Table(title="Speed-up by kind of prompt", title_justify="left")
    table.add_column("", no_wrap=True)
    for kind in kinds:
        table.add_column(kind, justify="right")
    for variant, load in named:
        cells = []
        for rows in kinds.values():
            row = next((row for row in rows if (row.variant, row.load) == (variant, load)), None)
            cells.append(interval(row.speed_up) if row else "–")
        table.add_row(f"{variant.name}, {load.name}, T {variant.temperature:g}", *cells)
    out.print(table)


def interval(ratio: Ratio) -> str:
    if math.isnan(ratio.value):
        return "–"
    if math.isnan(ratio.low):
        return f"{ratio.value:.2f}"
    return f"{ratio.value:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"


def number(value: float, digits: int = 2, scale: float = 1.0) -> str:
    return "–" if math.isnan(value) else f"{scale * value:.{digits}f}"


def _cells(row: Row, has_answers: bool) -> list[str]:
    cells = [
        row.variant.name,
        number(row.tokens_per_second, 1),
        "1" if row.variant.is_plain else interval(row.speed_up),
        number(row.ttft[0], 0, 1e3),
        " / ".join(number(value, 0, 1e3) for value in (row.itl[0], row.itl[2])),
        " / ".join(number(value, 0, 1e3) for value in row.e2e),
        number(row.acceptance.rate),
        number(row.acceptance.length),
        "–" if row.variant.is_plain or row.same is None else f"{row.same} of {row.compared}",
    ]
    if has_answers:
        cells.append(f"{row.right} of {row.judged}" if row.judged else "–")
    return [*cells, str(row.failures or "–")]
