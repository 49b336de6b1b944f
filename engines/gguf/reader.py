"""A GGUF file, or the parts of one that was split, as its metadata and its tensors.

The format is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; parts are named NAME-00001-of-00003.gguf.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engines.errors import ModelError

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
MAGIC = b"GGUF"


class Metadata:
    """The key-value pairs of a GGUF file. Remembers which were read, so that others are reported, not ignored."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`, or `default`."""
        self._asked.add(key)
        return self._values.get(key, default)

    def need(self, key: str) -> Any:
        """The value of `key`. Raises ModelError if there is none."""
        if key not in self._values:
            raise ModelError(f"its GGUF metadata has no {key}")
        return self.get(key)

    def below(self, prefix: str) -> list[str]:
        """All keys that begin with `prefix`, sorted."""
        return sorted(key for key in self._values if key.startswith(prefix))

    def unread(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix` and were never read."""
        return [key for key in self.below(prefix) if key not in self._asked]


@dataclass(slots=True)
class GgufModel:
    """All parts of a model. `tensors` holds the library's records, by name, their data still in the file."""

    metadata: Metadata
    tensors: dict[str, Any] = field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...]:
        """As torch has it: rows first. Raises ModelError if there is no such tensor."""
        if name not in self.tensors:
            raise ModelError(f"tensor {name} is missing from its GGUF file")
        return tuple(int(extent) for extent in reversed(self.tensors[name].shape))

    def values(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A tensor in float32. Raises ModelError if its type is one that can't be read."""
        from gguf import dequantize

        tensor = self.tensors[name]
        try:
            values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        except (NotImplementedError, ValueError) as error:
            raise ModelError(f"tensor {name} is of type {tensor.tensor_type.name}, which can't be read") from error
        return values.reshape(self.shape(name))


def parts_of(file: Path) -> list[Path]:
    """All files that `file` stands for, in order: itself or, if it is one of several parts, all of them.

    Raises:
        ModelError: if a part is missing.
    """
    named = _PART.fullmatch(file.name)
    if named is None:
        return [file]
    count = int(named["count"])
    parts = [file.with_name(f"{named['stem']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ModelError(f"{file.name} is one of {count} parts, and {missing[0]} is not beside it")
    return parts


def model_name(file: Path) -> str:
    """The file's name without its extension and without a part's number."""
    named = _PART.fullmatch(file.name)
    return named["stem"] if named else file.stem


def first_parts(files: list[Path]) -> list[Path]:
    """`files` without the second and further parts of split models."""
    return [file for file in files if (named := _PART.fullmatch(file.name)) is None or int(named["number"]) == 1]


def read_gguf(file: Path) -> GgufModel:
    """Read the metadata of a GGUF file and find its tensors, other parts included.

    Raises:
        ModelError: for what is not a GGUF file, is damaged or cut short, or lacks a part.
    """
    parts = parts_of(file)
    model: GgufModel | None = None
    for number, part in enumerate(parts):
        values, tensors = _read_part(part)
        count = int(values.get("split.count", 1)) or 1
        if count != len(parts):
            raise ModelError(f"{part.name} declares {count} parts, but its name does not say so")
        if int(values.get("split.no", 0)) != number:
            raise ModelError(
                f"{part.name} declares itself part {int(values['split.no']) + 1}, but its name says otherwise"
            )
        if model is None:
            model = GgufModel(Metadata(values))
        for name, tensor in tensors.items():
            if name in model.tensors:
                raise ModelError(f"tensor {name} is in more than one part of {file.name}")
            model.tensors[name] = tensor
    assert model is not None
    total = model.metadata.get("split.tensors.count")
    if len(parts) > 1 and total is not None and int(total) != len(model.tensors):
        raise ModelError(
            f"the parts of {file.name} hold {len(model.tensors)} tensors, but the metadata declares {total}"
        )
    return model


def _read_part(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from gguf import GGUFReader

    with file.open("rb") as stream:
        if stream.read(4) != MAGIC:
            raise ModelError(f"{file.name} is not a GGUF file: it does not begin with {MAGIC.decode()}")
    try:
        reader = GGUFReader(file)
        values = {name: entry.contents() for name, entry in reader.fields.items() if not name.startswith("GGUF.")}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    except Exception as error:  # the library reads on past the end and into whatever it finds there
        raise ModelError(f"{file.name} is damaged or cut short: {error}") from error
    return values, tensors
