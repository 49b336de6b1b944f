"""A trained draft as a model that stands by itself, with its target's embeddings, whole head and tokenizer: for engines
that load nothing else, as vLLM and llama.cpp. It is larger, and slower for the head that is not cut."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers.utils import logging

from config.pairs import is_bundled
from engines.bundled import bundled_gguf
from engines.gguf.tensors import PAIRED, name_table, paired
from engines.models import ModelFiles, resolve_model
from engines.own_parts import own_parts
from engines.torch.draft_weights import load_draft
from training.errors import TrainingError

GGUF = "draft.gguf"
_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""GGUF's names of the types whose tensors llama.cpp's converter leaves as they are, but for heads (PAIRED)."""
_TURNED = re.compile(r"model\.layers\.\d+\.self_attn\.(?P<which>[qk])_proj\.(weight|bias)")
_OF_THE_TARGET = re.compile(
    r"(general\.(name|basename|size_label|file_type|quantization_version|architecture)|GGUF)\b.*"
)


def export_draft(name: str, out: Path, gguf: bool, progress: Callable[[str], None], *, overwrite: bool = False) -> Path:
    """Write the draft `name` to the folder `out` as transformers has it, in bfloat16, and with `gguf` as a GGUF file
    (Q8_0) in it too. Returns what was written last.

    Raises:
        TrainingError: for a folder with something in it, unless it is to be overwritten; a model that is whole already;
            a GGUF that can't be written.
        ModelError: for a draft that can't be loaded.
    """
    if out.exists() and not out.is_dir():
        raise TrainingError(f"{out} is a file: --out names a folder")
    if not overwrite and out.is_dir() and any(out.iterdir()):
        raise TrainingError(f"{out} is not empty: name another folder, or say --overwrite to write into it")
    files = resolve_model(name, progress=progress)
    if files.parts is None:
        raise TrainingError(f"{files.id} is whole already: only what tandem train-draft wrote lacks parts")
    logging.disable_progress_bar()
    model = load_draft(files, torch.float32, torch.device("cpu"), exact_rows=True, whole_head=True)
    model.config.use_cache = True  # it is off for training
    if torch.equal(model.get_output_embeddings().weight, model.get_input_embeddings().weight):
        model.config.tie_word_embeddings = True
        model.tie_weights()
    source = _gguf_of(files, model.config.model_type, progress) if gguf else None
    tokenizer = transformers.AutoTokenizer.from_pretrained(files.parts.folder, trust_remote_code=False)
    if source is not None:
        out.mkdir(parents=True, exist_ok=True)
        _write_gguf(out / GGUF, model, files.id, source)
        progress(f"written: {out / GGUF}")
    model.to(torch.bfloat16).save_pretrained(out)
    for file in out.glob("*.safetensors"):  # safetensors writes for its own user alone
        shutil.copymode(out / "config.json", file)
    tokenizer.save_pretrained(out)
    progress(f"written: {out}")
    return out / GGUF if gguf else out


def _gguf_of(files: ModelFiles, kind: str, progress: Callable[[str], None]) -> Path:
    """The target's own GGUF file, whose tokenizer the draft's gets. Raises TrainingError."""
    if kind not in _ARCHITECTURES:
        raise TrainingError(f"no GGUF is written of {kind} models; llama.cpp's converter takes the folder")
    description = own_parts(files.folder)
    target = description.target if description is not None else ""
    if is_bundled(target):
        return bundled_gguf(progress)
    if target.endswith(".gguf") and Path(target).is_file():
        return Path(target)
    raise TrainingError(
        f"its target {target} is no GGUF file to take the tokenizer from: give llama.cpp's converter the folder"
    )


def _write_gguf(file: Path, model: Any, name: str, source: Path) -> None:
    """The target's metadata with the draft's own sizes, then the tensors: matrices in Q8_0, the rest in float32."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
    from gguf.quants import quantize

    config = model.config
    architecture = _ARCHITECTURES[config.model_type]
    writer = GGUFWriter(file, architecture)
    writer.add_name(name)
    writer.add_block_count(config.num_hidden_layers)
    for key, entry in GGUFReader(source).fields.items():
        if _OF_THE_TARGET.fullmatch(key) or key == f"{architecture}.block_count":
            continue
        part = entry.types[-1] if entry.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, entry.contents(), entry.types[0], part)
    for translated, values in _tensors(model, architecture):
        if values.ndim == 2 and values.shape[1] % 32 == 0:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(translated, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(translated, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(model: Any, architecture: str) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The model's weights by GGUF's names; a tied head is left out."""
    config = model.config
    table = name_table(architecture, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        stem, _, ending = name.rpartition(".")
        translated = table.get_name(stem)
        if translated is None:
            raise TrainingError(f"{name} has no name in GGUF files of architecture {architecture}")
        values = np.ascontiguousarray(tensor.float().numpy())
        turned = _TURNED.fullmatch(name)
        if turned is not None and architecture in PAIRED:
            heads = config.num_attention_heads if turned["which"] == "q" else config.num_key_value_heads
            values = np.ascontiguousarray(paired(values, heads))
        yield f"{translated}.{ending}", values
