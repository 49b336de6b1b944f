"""Results: shown as a table, kept as JSON under benchmarks/results/."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

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
    """What `write` wrote under this name; empty if nothing."""
    file = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def commit() -> str:
    """What code is being measured: the checkout's commit, with "-dirty" appended if files differ; else "unknown"."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip() or "unknown"


def machine() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "commit": commit(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a share `q` of the values does not exceed; nan without values."""
    if not values:
        return float("nan")
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)
