"""GGUF files: dequantised once into a folder of float32 safetensors that loads quickly from then on."""

from __future__ import annotations

import hashlib
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from basics.machine import free_host_bytes, gib
from engines.cache import build_once, cache_folder, remove_superseded
from engines.errors import ModelError
from engines.gguf.config import configuration
from engines.gguf.reader import GgufModel, parts_of, read_gguf
from engines.gguf.tensors import state_dict
from engines.gguf.tokenizer import build_tokenizer, special_ids, stop_ids
from engines.model_building import build_model

CONVERSION = 3
"""Which way of converting made a folder: one that was made another way is not used. The first dropped what it did not
know, the second had tokens for padding rows."""
_CONVERTED = re.compile(r"(?:(\d+)-)?[0-9a-f]{32}")  # the first had no number


def convert_gguf(file: Path, target: Path) -> None:
    """Write model, tokenizer and chat template of a GGUF file to the folder `target`, weights in float32.

    Raises:
        ModelError: for what is no whole GGUF file, for anything in it that would be left out, and for what does not fit
            into memory or onto the disk.
    """
    import torch
    from transformers import GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        read = read_gguf(file)
        arch, config = configuration(read)
        tokenizer = build_tokenizer(read.metadata, arch)
        check_room(read, target)
        weights = state_dict(read, arch, config)
        tokens = len(read.metadata.need("tokenizer.ggml.tokens"))
        named = special_ids(read.metadata, tokens)
        stops = stop_ids(read.metadata, tokens)
    except ModelError as error:
        raise ModelError(f"{file.name}: {error}") from error
    config.bos_token_id, config.eos_token_id = named.get("bos_token"), named.get("eos_token")
    config.dtype = torch.float32
    model = build_model(_filled, config, weights)
    left = [name for name, tensor in model.state_dict().items() if tensor.device.type == "meta"]
    if left:
        raise ModelError(f"{file.name}: {left[0]} was not filled")
    model.generation_config = GenerationConfig(
        bos_token_id=named.get("bos_token"), eos_token_id=stops or None, pad_token_id=named.get("pad_token")
    )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def converted(file: Path, progress: Callable[[str], None]) -> Path:
    """The folder that `file`, and the parts beside it, were converted to, converting them where that was not done.

    Raises:
        ModelError: as convert_gguf does.
    """
    file = file.resolve()
    digest = hashlib.sha256("".join(_content_hash(part, progress) for part in parts_of(file)).encode()).hexdigest()
    folder = cache_folder() / "gguf" / f"{CONVERSION}-{digest[:32]}"

    def build(target: Path) -> None:
        progress(f"converting {file.name} to safetensors (once)")
        convert_gguf(file, target)

    build_once(folder, build)
    remove_superseded(folder, _is_older)
    return folder


def check_room(model: GgufModel, target: Path) -> None:
    """Whether all weights in float32 fit into memory at once, and then onto the disk of `target`.

    Raises:
        ModelError: with the sums.
    """
    needed = 4 * sum(math.prod(model.shape(name)) for name in model.tensors)
    for free, where in ((free_host_bytes(), "of memory"), (shutil.disk_usage(target).free, f"on the disk of {target}")):
        if needed > free:
            raise ModelError(
                f"in float32, as the torch engine has it, it takes {gib(needed)}, and {gib(free)} {where} are free; "
                "engine llama_cpp runs it as it is"
            )


def _is_older(name: str) -> bool:
    made = _CONVERTED.fullmatch(name)
    return made is not None and int(made[1] or 1) < CONVERSION


def _content_hash(file: Path, progress: Callable[[str], None]) -> str:
    """sha256 of the content, remembered under the file's path, size and time of change."""
    stat = file.stat()
    key = hashlib.sha256(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()
    note = cache_folder() / "gguf" / "hashes" / key
    if note.exists() and len(known := note.read_text().strip()) == 64:
        return known
    progress(f"hashing {file.name}")
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(digest)
    return digest


def _filled(config: Any, weights: Mapping[str, Any]) -> Any:
    """A model with these weights. Under build_model as a whole: `tie_weights` must not be another thread's stand-in."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = build_model(AutoModelForCausalLM.from_config, config, dtype=torch.float32)
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    return model
