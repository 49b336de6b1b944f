"""The command line: `tandem up`, `serve`, `draft`, `target`, `doctor`; and `Tandem`, the same from Python. Importing it
loads neither, and lets no other folder's modules take the place of Tandem's packages."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "basics", "config", "draft_worker", "engines", "protocol", "server", "serving", "tandem",
    "target_worker", "training", "worker",
)  # fmt: skip
"""The rooms, which are top-level packages with names that other people's files have too."""


def own_packages_first() -> None:
    """Put Tandem's folder on sys.path before the first entry that holds anything named as one of its packages.

    The working directory (under `python -m`) and PYTHONPATH come before what is installed. Processes that
    multiprocessing spawns get this path too. Where no entry is in the way it goes to the end: an editable installation
    is found by a hook behind the whole path, and may be of another checkout than this. Also vLLM's plug-in
    (`vllm.general_plugins`): each of vLLM's processes calls it before it looks for Tandem's proposer.
    """
    for place, entry in enumerate(sys.path):
        folder = str(Path(entry or ".").resolve())
        if folder == str(ROOT):
            return
        if any(PathFinder.find_spec(name, [folder]) is not None for name in PACKAGES):
            sys.path.insert(place, str(ROOT))
            return
    sys.path.append(str(ROOT))


own_packages_first()

if TYPE_CHECKING:
    from tandem.python.answers import Answer, Stats
    from tandem.python.api import AsyncTandem, Stream, Tandem
    from tandem.python.client import AsyncStream
    from tandem.python.errors import Misuse, ModelUnavailable, RequestFailed, TandemError

_PUBLIC = {
    "Answer": "answers",
    "AsyncStream": "client",
    "AsyncTandem": "api",
    "Misuse": "errors",
    "ModelUnavailable": "errors",
    "RequestFailed": "errors",
    "Stats": "answers",
    "Stream": "api",
    "Tandem": "api",
    "TandemError": "errors",
}
"""What `from tandem import …` gives, and the module of tandem.python that it is loaded from when it is asked for."""

__all__ = [
    "Answer", "AsyncStream", "AsyncTandem", "Misuse", "ModelUnavailable", "RequestFailed", "Stats", "Stream", "Tandem",
    "TandemError",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tandem' has no attribute {name!r}")
    return getattr(import_module(f"tandem.python.{_PUBLIC[name]}"), name)
