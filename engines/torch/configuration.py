"""A model's config.json, read by transformers."""

from __future__ import annotations

import json
from typing import Any

import transformers

from engines.errors import ModelError
from engines.models import ModelFiles
from engines.torch.elsewhere import instead

_COUNTS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")


def read_config(files: ModelFiles) -> Any:
    """The configuration as transformers has it.

    Raises:
        ModelError: for a file that can't be read, values of other types than the model's, counts below one, and a type
            of model that transformers does not know.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(files.folder, trust_remote_code=False)
    except Exception as error:  # what its checks of values raise has no class in common
        kind = _stated_type(files)
        if kind is not None and kind not in transformers.CONFIG_MAPPING:
            raise ModelError(
                f"{files.id}: its config.json names the model type {kind!r}, which transformers "
                f"{transformers.__version__} does not have, and code of models is not run; {instead(kind)}"
            ) from error
        told = " ".join(str(error).split())  # in one line: transformers breaks its sentences
        raise ModelError(f"{files.id}: its config.json could not be read: {told}") from error
    text = config.get_text_config()
    for name in _COUNTS:
        value = getattr(text, name, None)
        if isinstance(value, int) and value < 1:
            raise ModelError(f"{files.id}: its config.json says {name} {value}, which is not a positive number")
    return config


def _stated_type(files: ModelFiles) -> str | None:
    try:
        described = json.loads((files.folder / "config.json").read_text())
    except (OSError, ValueError):
        return None
    kind = described.get("model_type") if isinstance(described, dict) else None
    return kind if isinstance(kind, str) else None
