"""Which files have passed bitwise mode's test on this machine: the same passes would only give the same bits again.

The test takes as long as reading several hundred tokens, at each start. All that decides its outcome is in the name of
the mark that a pass leaves: the file, the library, the processor, the options, and the code that runs and tests.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from engines.cache import cache_folder
from engines.llama_cpp.files import GgufFile
from engines.llama_cpp.library import Library

_CPUINFO = Path("/proc/cpuinfo")
_VARIABLES = ("GGML_", "LLAMA_", "OMP_", "GOMP_")


def mark_of(lib: Library, found: GgufFile, *facts: object) -> Path | None:
    """The file whose presence says that this model passed with these `facts`; None if the processor can't be told."""
    try:
        processor = {line for line in _CPUINFO.read_text().splitlines() if line.startswith(("model name", "flags"))}
    except OSError:
        return None
    if not processor:
        return None
    variables = sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES))
    parts = (
        lib.version, lib.system, sorted(processor), binaries(lib), code_of(Path(__file__).parent), variables, *facts,
    )  # fmt: skip
    return cache_folder() / "bitwise" / found.fingerprint(*map(repr, parts))


def binaries(lib: Library) -> list[tuple[str, int, int]]:
    """The library's files, as they tell one build from another: name, size, time."""
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(lib.folder.iterdir())]


def code_of(*places: Path) -> str:
    """A hash over Python files, and those of folders."""
    code = hashlib.sha256()
    for place in places:
        for source in sorted(place.glob("*.py")) if place.is_dir() else [place]:
            code.update(source.read_bytes())
    return code.hexdigest()


def passed(mark: Path | None) -> bool:
    return mark is not None and mark.is_file()


def remember(mark: Path | None) -> None:
    """A folder that can't be written costs the next start its time, nothing else."""
    if mark is None:
        return
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError:
        pass
