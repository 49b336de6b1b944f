"""From the name a person gives a model to a folder that holds it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from config.pairs import BUNDLED, BUNDLED_DRAFT, is_bundled
from engines.bundled import BUNDLED_DRAFT_FOLDER, bundled_folder
from engines.errors import ModelError
from engines.gguf.convert import converted
from engines.gguf.reader import first_parts, model_name
from engines.lent import lent
from engines.own_parts import own_parts

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_HUB_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]
_WEIGHT_FILES = ["*.safetensors"]
_PICKLE_FILES = ["*.bin", "*.pt", "*.pth"]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on this machine: `id` is its name on the API, `folder` holds config, weights and tokenizer.

    `parts`: the target of a draft whose folder holds only what is its own (engines/own_parts.py); embeddings, head and
    tokenizer are that model's.
    """

    id: str
    folder: Path
    parts: ModelFiles | None = None


def resolve_model(
    name: str,
    *,
    allow_pickle_weights: bool = False,
    with_weights: bool = True,
    progress: Callable[[str], None] = lambda message: None,
) -> ModelFiles:
    """Find a model by the bundled name, a folder, a GGUF file, or a Hugging Face id, fetching it if it is not here.

    Weights must be safetensors or GGUF: files pickled by torch can run code when loaded, so they need
    `allow_pickle_weights`. Without `with_weights` none are fetched from the hub.

    Raises:
        ModelError: if there is no such model, or it may not be loaded.
    """
    if is_bundled(name):
        return ModelFiles(BUNDLED, bundled_folder(progress))
    if name.lower() == BUNDLED_DRAFT:
        return ModelFiles(BUNDLED_DRAFT, BUNDLED_DRAFT_FOLDER, resolve_model(BUNDLED, progress=progress))
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{name} is a file, but not a .gguf file; name the folder of a model instead")
        return ModelFiles(model_name(path), converted(path, progress))
    if path.is_dir():
        own = own_parts(path)
        if own is not None:
            return ModelFiles(path.resolve().name, path.resolve(), resolve_model(own.target, progress=progress))
        if lent(path) is not None:
            return ModelFiles(path.resolve().name, path.resolve())
        return _model_folder(path.resolve(), allow_pickle_weights, progress)
    if name.startswith((".", "/", "~")) or path.suffix == ".gguf" or not _HUB_ID.fullmatch(name):
        raise ModelError(f"{name}: no such file or folder")
    if not with_weights:
        return ModelFiles(name, _hub_folder(name, _HUB_FILES, progress))
    patterns = [*_HUB_FILES, *_WEIGHT_FILES, *(_PICKLE_FILES if allow_pickle_weights else [])]
    return ModelFiles(name, _check_weights(_hub_folder(name, patterns, progress), allow_pickle_weights))


def weight_files(folder: Path, allow_pickle_weights: bool = False) -> list[Path]:
    """The weight files of a folder that transformers would load, safetensors if there are any, by name."""
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]  # others beside it hold the same weights for other programs
    files = _indexed(folder) or sorted(folder.glob("*.safetensors"))
    if not files and allow_pickle_weights:
        files = sorted(file for pattern in _PICKLE_FILES for file in folder.glob(pattern))
    return files


def _indexed(folder: Path) -> list[Path]:
    """Those that model.safetensors.index.json names and that are here; none if there is no such index."""
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        names = {str(name) for name in index["weight_map"].values()}
    except (OSError, ValueError, KeyError, AttributeError):
        return []
    return sorted(folder / name for name in names if (folder / name).is_file())


def _model_folder(folder: Path, allow_pickle_weights: bool, progress: Callable[[str], None]) -> ModelFiles:
    files = sorted(folder.glob("*.gguf"))
    if files and not weight_files(folder, allow_pickle_weights=True):  # some have their origin's config.json too
        gguf = first_parts(files) or files[:1]  # parts without their first: reading one of them raises
        if len(gguf) > 1:
            raise ModelError(f"{folder} holds {len(gguf)} GGUF models: name one of {', '.join(f.name for f in gguf)}")
        return ModelFiles(folder.name, converted(gguf[0], progress))
    if not (folder / "config.json").exists():
        raise ModelError(f"{folder} holds no model: it has no config.json and no GGUF file")
    return ModelFiles(folder.name, _check_weights(folder, allow_pickle_weights))


def _check_weights(folder: Path, allow_pickle_weights: bool) -> Path:
    if weight_files(folder, allow_pickle_weights):
        return folder
    if weight_files(folder, allow_pickle_weights=True):
        raise ModelError(
            f"{folder} has pickled weights only, and loading those can run code; "
            "convert them to safetensors, or set allow_pickle_weights if you trust them"
        )
    raise ModelError(f"{folder} has no safetensors weights")


def _hub_folder(name: str, patterns: list[str], progress: Callable[[str], None]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    progress(f"fetching {name} from the Hugging Face hub, unless it is cached")
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except RepositoryNotFoundError as error:
        raise ModelError(f"{name}: no such model on the hub, nor a file or folder here (or no access to it)") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelError(f"{name}: could not be fetched from the hub: {str(error).splitlines()[0]}") from error
