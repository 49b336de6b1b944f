"""From the name a person gives a model to a GGUF file that llama.cpp can be given, or a sentence on why not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from basics.machine import free_host_bytes, gib
from config.pairs import BUNDLED, BUNDLED_DRAFT, is_bundled
from engines.bundled import bundled_gguf
from engines.errors import ModelError
from engines.gguf.header import Header, read_header
from engines.gguf.reader import Metadata, first_parts, model_name, parts_of

_SAMPLE_BYTES = 4096
_SAMPLES = 256
_HEADER_BYTES = 2**24
_NO_MODEL = {
    "adapter": "holds a LoRA adapter, which is not a model by itself; merge it into its model (llama-export-lora)",
    "mmproj": "holds a multimodal projector, which is not a language model; name the model that it belongs to",
    "imatrix": "holds an importance matrix, not a model",
    "vocab": "holds a vocabulary without weights",
}
_BYTES_OF_32 = {
    "f32": 128,
    "f16": 64,
    "bf16": 64,
    "q8_0": 34,
    "q5_1": 24,
    "q5_0": 22,
    "q4_1": 20,
    "q4_0": 18,
    "iq4_nl": 18,
}


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A model's file (the first of several parts) and its metadata. `id` is its name on the API."""

    id: str
    file: Path
    header: Header

    @property
    def metadata(self) -> Metadata:
        return self.header.metadata

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture"))

    @property
    def size(self) -> int:
        """Bytes, of all parts."""
        return sum(part.stat().st_size for part in parts_of(self.file))

    def fingerprint(self, *facts: str) -> str:
        """32 hexadecimal digits over the weights and `facts`, all else that decides a logit's bits.

        Of each part the beginning, where names, vocabulary and the first tensors are, and samples throughout are read:
        cheap at any size, and any training or quantising changes the result.
        """
        digest = hashlib.sha256("\0".join(facts).encode())
        for part in parts_of(self.file):
            size = part.stat().st_size
            digest.update(size.to_bytes(8, "little"))
            with part.open("rb") as stream:
                digest.update(stream.read(_HEADER_BYTES))
                for index in range(_SAMPLES):
                    stream.seek(size * index // _SAMPLES)
                    digest.update(stream.read(_SAMPLE_BYTES))
        return digest.hexdigest()[:32]


def find_gguf(name: str, progress: Callable[[str], None]) -> GgufFile:
    """The bundled model's file, a GGUF file, or the only one of a folder; read and looked over.

    Raises:
        ModelError: naming the file, for what is not there, not whole, or no language model.
    """
    if is_bundled(name):
        return _looked_over(BUNDLED, bundled_gguf(progress))
    if name.lower() == BUNDLED_DRAFT:
        raise ModelError(
            f"{BUNDLED_DRAFT} runs on engine torch alone: leave the draft worker's engine at auto (with tandem up,"
            " TANDEM_TARGET_ENGINE=llama_cpp instead of --engine), or make a GGUF of it with tandem export-draft --gguf"
        )
    path = Path(name).expanduser()
    if path.is_dir():
        files = first_parts(sorted(path.glob("*.gguf")))
        if len(files) != 1:
            raise ModelError(f"{name} holds {len(files)} GGUF models; engine llama_cpp needs one: name a .gguf file")
        return _looked_over(path.resolve().name, files[0])
    if not path.is_file():
        raise ModelError(f"{name}: no such file; engine llama_cpp runs GGUF files on this machine, nothing from a hub")
    return _looked_over(model_name(path), path)


def check_memory(found: GgufFile, cells: int, type_k: str, type_v: str, on_host: bool) -> None:
    """Refuse what would not fit into this machine's memory, with the sums; nothing is checked on a GPU.

    Raises:
        ModelError
    """
    per_token = bytes_per_token(found, type_k, type_v)
    keys_and_values = cells * per_token
    free = free_host_bytes()
    if on_host and found.size + keys_and_values > free:
        raise ModelError(
            f"{found.file.name} does not fit: {gib(found.size)} of weights and {gib(keys_and_values)} for keys and "
            f"values ({cells} tokens × {per_token:,} B), {gib(free)} free; lower the number of slots or the context "
            "length, or choose smaller cache types"
        )


def bytes_per_token(found: GgufFile, type_k: str, type_v: str) -> int:
    """Of keys and values, all layers together; a multiple of what latent attention really keeps."""

    def key(name: str, default: Any = None) -> Any:
        return found.metadata.get(f"{found.architecture}.{name}", default)

    layers, heads = int(key("block_count", 0)), key("attention.head_count", 1)
    kv_heads = key("attention.head_count_kv", heads)
    each = [int(value) for value in kv_heads] if isinstance(kv_heads, list) else [int(kv_heads)] * layers
    first = int(heads[0] if isinstance(heads, list) else heads)
    dim = int(key("embedding_length", 0)) // max(1, first)
    key_bytes = int(key("attention.key_length", dim)) * _BYTES_OF_32[type_k]
    value_bytes = int(key("attention.value_length", dim)) * _BYTES_OF_32[type_v]
    return sum(each) * (key_bytes + value_bytes) // 32


def _looked_over(model_id: str, file: Path) -> GgufFile:
    headers = [read_header(part) for part in parts_of(file)]
    first = parts_of(file)[0]
    if first != file:
        raise ModelError(f"{file.name} is not the first part of its model: name {first.name}")
    header = headers[0]
    kind = str(header.metadata.get("general.type", "model"))
    if str(header.metadata.get("general.architecture")) == "clip":
        kind = "mmproj"
    if kind in _NO_MODEL:
        raise ModelError(f"{file.name} {_NO_MODEL[kind]}")
    if not any(other.tensors for other in headers):
        raise ModelError(f"{file.name} {_NO_MODEL['vocab']}")
    return GgufFile(model_id, file, header)
