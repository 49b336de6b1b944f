"""A run kept as JSON: everything that was measured, answer by answer, so that any other question can be put to it."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tandem import ROOT, __version__
from tandem.bench.errors import BenchError
from tandem.bench.samples import Group, Reply, Sample
from tandem.bench.summary import Row
from tandem.bench.variants import Load, Variant

FORMAT = 1
MAX_FILE_BYTES = 2**31


@dataclass(frozen=True, slots=True)
class Results:
    """`about`: when, where, what server, which options; `complete` is false where the run was cut short."""

    about: Mapping[str, Any]
    complete: bool
    samples: Sequence[Sample]
    groups: Sequence[Group]


def machine() -> dict[str, Any]:
    """What a number depends on beside the code: processor, cores, load."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": platform.system(),
        "python": platform.python_version(),
        "tandem": __version__,
        "commit": commit(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def commit() -> str:
    """What code is being measured: the checkout's commit, with "-dirty" appended if files differ; else "unknown"."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip() or "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def try_folder(path: Path) -> None:
    """Whether results can be written there, before an hour is measured in vain; leaves nothing. Raises BenchError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path):
            pass
        for folder in missing:
            folder.rmdir()
    except OSError as error:
        raise BenchError(f"--out: {path}: cannot be written to: {error.strerror}") from None


def write(path: Path, results: Results, rows: Sequence[Row]) -> None:
    """In one step, so that no reader ever sees half a file. Raises BenchError."""
    document = {
        "format": FORMAT,
        "complete": results.complete,
        **results.about,
        "rows": [_row(row) for row in rows],
        "groups": [asdict(group) for group in results.groups],
        "samples": [asdict(sample) for sample in results.samples],
    }
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(_finite(document), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise BenchError(f"{path}: cannot be written: {error.strerror}") from None


def read(path: Path) -> Results:
    """What `write` wrote. Raises BenchError, which names the file."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise BenchError(f"{path}: larger than any result")
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise BenchError(f"{path}: no JSON, so no result of tandem bench") from None
    try:
        if found["format"] != FORMAT:
            raise BenchError(f"{path}: of format {found['format']}; this Tandem reads {FORMAT}")
        samples = [_sample(sample) for sample in found["samples"]]
        groups = [_group(group) for group in found["groups"]]
        about = {key: found[key] for key in ("machine", "server", "options")}
        return Results(about, bool(found["complete"]), samples, groups)
    except (LookupError, TypeError, AttributeError):
        raise BenchError(f"{path}: no result of tandem bench") from None


def _sample(found: Mapping[str, Any]) -> Sample:
    reply = found["reply"]
    values = {
        **found,
        "variant": Variant(**found["variant"]),
        "load": Load(**found["load"]),
        "reply": Reply(**{**reply, "arrivals": tuple(reply["arrivals"])}) if reply is not None else None,
    }
    return Sample(**values)


def _group(found: Mapping[str, Any]) -> Group:
    return Group(**{**found, "variant": Variant(**found["variant"]), "load": Load(**found["load"])})


def _row(row: Row) -> dict[str, Any]:
    return {
        "name": row.variant.name,
        **asdict(row),
        "acceptance_rate": row.acceptance.rate,
        "acceptance_length": row.acceptance.length,
        "acceptance_by_position": row.acceptance.by_position,
    }


def _finite(value: Any) -> Any:
    """JSON has no nan: null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return value
