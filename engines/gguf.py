"""GGUF files: dequantised once into a folder of float32 safetensors that loads quickly from then on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from engines.cache import build_once, cache_folder


def convert_gguf(file: Path, target: Path) -> None:
    """Write model, tokenizer and chat template of a GGUF file to the folder `target`, weights in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        trust_remote_code=False,
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False).save_pretrained(target)


def converted(file: Path, progress: Callable[[str], None]) -> Path:
    """The folder that `file` was converted to, converting it where that has not been done."""
    file = file.resolve()
    folder = cache_folder() / "gguf" / _content_hash(file, progress)[:32]

    def build(target: Path) -> None:
        progress(f"converting {file.name} to safetensors (once)")
        convert_gguf(file, target)

    return build_once(folder, build)


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
