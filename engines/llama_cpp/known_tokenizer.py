"""A file's tokenizer as gateways are given it, kept once it was built and agreed with llama.cpp's own.

Building it from the file's metadata imports transformers and takes seconds, with the comparison, at each start; the
same file, libraries and code would only give the same again. All these are in the name it is kept under.
"""

from __future__ import annotations

import hashlib
import os
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel, ValidationError

from engines.cache import cache_folder
from engines.errors import ModelError
from engines.gguf import tokenizer as of_gguf
from engines.llama_cpp.context import LoadedGguf
from engines.llama_cpp.files import GgufFile
from engines.llama_cpp.library import Library
from engines.llama_cpp.remembered import binaries, code_of
from engines.llama_cpp.vocabulary import check_tokenizer
from engines.models import ModelFiles
from engines.token_bytes import has_bytes
from engines.tokenizer import special_token_ids, tokenizer_info
from protocol.worker_info import TokenizerInfo

_LIBRARIES = ("tokenizers", "transformers")
_ENGINES = Path(__file__).parents[1]
_SOURCES = (
    Path(__file__).parent, Path(of_gguf.__file__).parent, _ENGINES / "tokenizer.py", _ENGINES / "token_bytes.py",
)  # fmt: skip


class KnownTokenizer(BaseModel):
    """What a worker needs of it."""

    info: TokenizerInfo
    special_token_ids: list[int]
    takes_grammars: bool
    """Given xgrammar: its tokens have definite bytes, and one of them is a stop token."""


def kept_tokenizer(lib: Library, found: GgufFile) -> KnownTokenizer | None:
    """As an earlier start built it; None if none has. Its `model_id` and `context_length` are that start's."""
    return _read(_place(lib, found))


def known_tokenizer(
    found: GgufFile, model: LoadedGguf, context_length: int, kept: KnownTokenizer | None
) -> KnownTokenizer:
    """The tokenizer of a loaded file, from what was kept or built now, and then kept.

    Raises:
        ModelError: if there is none, it can't be built, or it differs from llama.cpp's own.
    """
    if kept is None:
        kept = _build(found, model, context_length)
        _write(_place(model.library, found), kept)
    info = kept.info.model_copy(update={"model_id": found.id, "context_length": context_length})
    return kept.model_copy(update={"info": info})


def _place(lib: Library, found: GgufFile) -> Path:
    facts = (lib.version, binaries(lib), [version(name) for name in _LIBRARIES], code_of(*_SOURCES))
    return cache_folder() / "tokenizers" / f"{found.fingerprint(*map(repr, facts))}.json"


def _build(found: GgufFile, model: LoadedGguf, context_length: int) -> KnownTokenizer:
    try:
        tokenizer = of_gguf.build_tokenizer(found.metadata, found.architecture)
        stops = of_gguf.stop_ids(found.metadata, model.num_ids)
    except ModelError as error:
        raise ModelError(f"{found.file.name}: {error}") from error
    check_tokenizer(model, tokenizer, found.file.name)
    files = ModelFiles(found.id, found.file.parent)
    info = tokenizer_info(files, tokenizer, stop_ids=stops, logits_size=model.num_ids, context_length=context_length)
    bytes_known = has_bytes(info.tokenizer_json, tokenizer.get_vocab())
    takes_grammars = bytes_known and any(0 <= stop < model.num_ids for stop in info.stop_token_ids)
    return KnownTokenizer(info=info, special_token_ids=special_token_ids(tokenizer), takes_grammars=takes_grammars)


def _read(place: Path) -> KnownTokenizer | None:
    try:
        kept = place.read_bytes()
        digest, _, body = kept.partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest:
            return None  # damaged: another text could be a valid tokenizer, and a wrong one
        return KnownTokenizer.model_validate_json(body)
    except (OSError, ValidationError):
        return None


def _write(place: Path, known: KnownTokenizer) -> None:
    """A folder that can't be written costs the next start its time, nothing else."""
    body = known.model_dump_json().encode()
    temporary = place.with_name(f".{place.name}-{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        temporary.rename(place)
    except OSError:
        temporary.unlink(missing_ok=True)
