"""Results: shown as a table, kept as JSON under benchmarks/results/."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tandem.bench.results import commit, machine
from tandem.bench.statistics import median, quantile

__all__ = ["RESULTS", "commit", "machine", "median", "quantile", "read", "show", "write"]

RESULTS = Path(__file__).resolve().parent / "results"


def show(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows that have the same keys as a table."""
    table = Table(title=title)
    for key in rows[0] if rows else ():
        table.add_column(key, justify="right" if isinstance(rows[0][key], (int, float)) else "left")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    Console(width=160).print(table)


def write(name: str, results: Mapping[str, Any]) -> Path:
    """Write `results` and what machine they come from to results/NAME.json, in one step."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / f"{name}.json"
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps({"machine": machine(), **results}, indent=1, ensure_ascii=False) + "\n")
    temporary.replace(file)
    return file


def read(name: str) -> dict[str, Any]:
    """What `write` saved under this name; empty if nothing."""
    file = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)
