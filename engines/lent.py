"""Models that somebody has in memory already, by the folder that has all of them but their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_LENT: dict[Path, Any] = {}


def lend(folder: Path, model: Any) -> None:
    """Whoever loads `folder` from now on uses this model's tensors, until `take_back`."""
    _LENT[folder.resolve()] = model


def lent(folder: Path) -> Any | None:
    """The model that was lent under this folder, if one was."""
    return _LENT.get(folder.resolve())


def take_back(folder: Path) -> None:
    """The folder is a folder again; what was loaded keeps its tensors."""
    _LENT.pop(folder.resolve(), None)
