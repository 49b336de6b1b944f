"""What a caller may give as a model: a name, a folder, a worker's address, or an object that is loaded already."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from basics.names import LOOKUP
from config.pairs import full_id, pair_for
from config.urls import worker_url
from engines.lent import lend
from tandem.python.errors import ModelUnavailable

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A transformers model and its tokenizer, and the name that goes with them."""

    name: str
    model: Any
    tokenizer: Any


Model = str | Loaded | None
"""A name, folder, file or http(s):// address; an object; None: no drafts."""


def target_of(given: Any, tokenizer: Any = None) -> str | Loaded:
    """What `Tandem(given, tokenizer=…)` names. Raises TypeError, ValueError."""
    if isinstance(given, str | Path):
        if tokenizer is not None:
            raise TypeError("tokenizer: goes with a model that is loaded already; a named one has its own")
        return _name(str(given), "target")
    return _object(given, tokenizer, "target")


def draft_of(given: Any, target: str | Loaded) -> Model:
    """What `draft=given` names; "auto" is left to `pair_of`. Raises TypeError, ValueError."""
    if given is None:
        return None
    if isinstance(given, str | Path):
        return _name(str(given), "draft")
    return _object(given, target.tokenizer if isinstance(target, Loaded) else None, "draft")


def pair_of(target_name: str) -> str:
    """The draft that `tandem up` picks for a target of this name: a model's id, or "lookup"."""
    return pair_for(target_name).draft


def is_address(model: Model) -> bool:
    return isinstance(model, str) and model.startswith(("http://", "https://"))


def _name(name: str, role: Literal["target", "draft"]) -> str:
    if not name.strip():
        raise ValueError(f"{role}: must not be empty")
    if is_address(name):
        return worker_url(name)
    if role == "target" and name in (LOOKUP, AUTO):
        raise ValueError(f"target: {name!r} is a way to draft; name the model whose text you want")
    return full_id(name)


def _object(given: Any, tokenizer: Any, role: Literal["target", "draft"]) -> Loaded:
    model = given
    if isinstance(given, tuple):
        if len(given) != 2:
            raise TypeError(f"{role}: a tuple must be (model, tokenizer)")
        model, tokenizer = given
    if not (hasattr(model, "save_pretrained") and hasattr(model, "config") and callable(model)):
        raise TypeError(
            f"{role}: must be a model's name, a folder, a worker's address or a transformers model, "
            f"not {type(model).__name__}"
        )
    if tokenizer is None:
        raise TypeError(f"{role}: a loaded model needs its tokenizer: give (model, tokenizer)")
    if not hasattr(tokenizer, "save_pretrained"):
        raise TypeError(f"{role}: its tokenizer is no transformers tokenizer but {type(tokenizer).__name__}")
    # Without added tokens: some models have more of these than rows, and never say them.
    rows, tokens = getattr(model.config, "vocab_size", None), getattr(tokenizer, "vocab_size", None)
    if isinstance(rows, int) and isinstance(tokens, int) and tokens > rows:
        raise ValueError(f"{role}: its tokenizer has {tokens} tokens and the model {rows}: give (model, tokenizer)")
    # A folder keeps only its last part, as it does if it is named.
    name = str(getattr(model.config, "_name_or_path", "") or "")
    return Loaded(Path(name).name if Path(name).is_dir() else name or type(model).__name__, model, tokenizer)


def written(loaded: Loaded, into: tempfile.TemporaryDirectory[str], with_weights: bool) -> Path:
    """The folder, within `into`, of the model as it is now: the same loader then reads it as any other.

    Without `with_weights` the loader takes the tensors of the caller's object, which are not copied (engines/lent.py).
    The object is neither changed nor kept. Raises ModelUnavailable.
    """
    folder = Path(into.name) / loaded.name.replace("/", "--")
    try:
        if with_weights:
            loaded.model.save_pretrained(folder)
        else:
            loaded.model.config.save_pretrained(folder)
            if loaded.model.generation_config is not None:
                loaded.model.generation_config.save_pretrained(folder)
            lend(folder, loaded.model)
        loaded.tokenizer.save_pretrained(folder)
    except Exception as error:
        raise ModelUnavailable(f"{loaded.name}: the model could not be written to {folder.parent}: {error}") from error
    return folder
