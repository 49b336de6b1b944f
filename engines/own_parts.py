"""Folders of drafts that hold only what is the draft's own: embeddings, head and tokenizer are its target's.

`tandem train-draft` writes them (training/export.py): `draft.json` beside `config.json` and `draft.safetensors`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from engines.errors import ModelError

FORMAT = 1
DESCRIPTION = "draft.json"
WEIGHTS = "draft.safetensors"
KEPT = "kept_ids"
SCALE = ".scale"


@dataclass(frozen=True, slots=True)
class OwnParts:
    """`target` is the name of the model that the other parts are taken from, `embeddings_sha256` the hash of its input
    embeddings (`engines.torch.draft_weights.tensor_hash`)."""

    target: str
    embeddings_sha256: str


def own_parts(folder: Path) -> OwnParts | None:
    """What a draft's folder says of itself; None for a folder that is whole.

    Raises:
        ModelError: for a description that can't be read, or of another format.
    """
    file = folder / DESCRIPTION
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        known = int(found["format"])
        parts = OwnParts(str(found["target"]), str(found["embeddings_sha256"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file} could not be read: {error}") from error
    if known != FORMAT:
        raise ModelError(f"{file} is of format {known}; this version of Tandem reads {FORMAT}")
    if not (folder / WEIGHTS).is_file() or not (folder / "config.json").is_file():
        raise ModelError(f"{folder} holds {DESCRIPTION}, but not {WEIGHTS} and config.json beside it")
    return parts
