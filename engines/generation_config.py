"""A model's generation_config.json: the ids that end a generation may stand in it alone."""

from __future__ import annotations

from typing import Any

from engines.errors import ModelError
from engines.models import ModelFiles

_NAME = "generation_config.json"


def read_generation_config(files: ModelFiles) -> Any | None:
    """What the file says; None if there is none, since it is optional. transformers' own loading takes a damaged one
    for none, and the model would then not stop where it should.

    Raises:
        ModelError: for a file that can't be read, or whose ends are not ids.
    """
    from transformers import GenerationConfig

    if not (files.folder / _NAME).is_file():
        return None
    try:
        found = GenerationConfig.from_pretrained(files.folder)
    except Exception as error:  # whatever the library makes of a file that holds something else
        raise ModelError(f"{files.id}: its {_NAME} could not be read: {error}") from error
    ends = found.eos_token_id
    ids = ends if isinstance(ends, list) else [ends]
    if ends is not None and not all(isinstance(token_id, int) and token_id >= 0 for token_id in ids):
        raise ModelError(f"{files.id}: its {_NAME} has an eos_token_id that is no token's id: {ends!r}")
    return found
