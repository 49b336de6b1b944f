"""Opening a safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from engines.errors import ModelError


def open_weights(file: Path) -> Any:
    """The file's tensors, to be used as a context manager (`safetensors.safe_open` for torch).

    Raises:
        ModelError: naming a file that can't be read as one.
    """
    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise ModelError(f"{file.name} is cut short or damaged: {error}") from error
