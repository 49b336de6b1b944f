"""The beginning of a GGUF file, read in tenths of a second: metadata, and whether all tensors are there.

The library's reader makes an array of every string and takes seconds for a large vocabulary; who has the weights read
by something else needs no more than this. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md has the format.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.errors import ModelError
from engines.gguf.reader import MAGIC, Metadata

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself, and the names of the tensors in it."""

    metadata: Metadata
    tensors: frozenset[str]


def read_header(file: Path) -> Header:
    """Raises ModelError for what is not a GGUF file of this byte order, is damaged, or is shorter than its tensors."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        if stream.read(4) != MAGIC:
            raise ModelError(f"{file.name} is not a GGUF file: it does not begin with {MAGIC.decode()}")
        try:
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
                header, end = _Cursor(view).header()
        except (struct.error, IndexError, ValueError, KeyError, OverflowError, MemoryError) as error:
            raise ModelError(f"{file.name} is damaged or cut short: {error}") from error
    if end > size:
        raise ModelError(f"{file.name} is cut short: it has {size:,} bytes, and its tensors end at {end:,}")
    return header


class _Cursor:
    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self._at = len(MAGIC)

    def header(self) -> tuple[Header, int]:
        """The header, and where the file's last tensor ends."""
        version = self._scalar("<I")
        if version not in _VERSIONS:
            raise ValueError(f"it is of version {version}, and versions 2 and 3 are known")
        num_tensors, num_keys = self._scalar("<Q"), self._scalar("<Q")
        values: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            values[key] = self._value(self._scalar("<I"))
        ends = {}
        for _ in range(num_tensors):
            name = self._string()
            shape = [self._scalar("<Q") for _ in range(self._scalar("<I"))]
            kind, offset = self._scalar("<I"), self._scalar("<Q")
            ends[name] = offset + _bytes_of(shape, kind)
        alignment = int(values.get("general.alignment", _DEFAULT_ALIGNMENT))
        data = -(-self._at // alignment) * alignment
        return Header(Metadata(values), frozenset(ends)), data + max(ends.values(), default=0)

    def _scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._view, self._at)
        self._at += struct.calcsize(form)
        return value

    def _string(self) -> str:
        length = self._scalar("<Q")
        data = self._view[self._at : self._at + length]
        if len(data) != length:
            raise ValueError("a string goes on behind its end")
        self._at += length
        return data.decode("utf-8", errors="surrogateescape")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        of, count = self._scalar("<I"), self._scalar("<Q")
        if count > len(self._view):
            raise ValueError("an array goes on behind its end")
        if of not in _SCALARS:
            return [self._value(of) for _ in range(count)]
        form = f"<{count}{_SCALARS[of][1]}"
        values = struct.unpack_from(form, self._view, self._at)
        self._at += struct.calcsize(form)
        return list(values)


def _bytes_of(shape: list[int], kind: int) -> int:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    elements = math.prod(shape)
    try:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (KeyError, ValueError):
        return 0  # a type newer than the library: llama.cpp knows better
    return int(elements // block * size)
