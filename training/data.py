"""What `--data` may hold, and what becomes of it: prompts for the target, and texts of the data's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.errors import TrainingError

_FIELDS = ("messages", "prompt", "prefix", "text")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the data. Exactly one of the three is set.

    `messages`: a chat, of roles and contents; `prefix`: raw text that the target is to continue; `text`: raw text that
    is itself trained on, and whose beginning the target continues. `kind` names what figures are grouped by.
    """

    kind: str
    messages: tuple[tuple[str, str], ...] = ()
    prefix: str = ""
    text: str = ""


def read_data(path: Path) -> list[Entry]:
    """Read a .jsonl file, a .txt file (one text), or every such file of a folder.

    A line of .jsonl is an object with one of `messages` (OpenAI's form), `prompt` (a chat of one question), `prefix` or
    `text`, and possibly `kind`.

    Raises:
        TrainingError: naming file and line.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in (".jsonl", ".txt"))
        entries = [entry for file in files for entry in read_data(file)]
    elif path.suffix == ".txt":
        entries = [Entry("text", text=_decoded(path))]
    elif path.suffix == ".jsonl":
        entries = list(_lines(path))
    else:
        raise TrainingError(f"{path}: neither a .jsonl nor a .txt file, nor a folder of such")
    if not entries:
        raise TrainingError(f"{path} holds no data")
    return entries


def _decoded(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingError(f"{path} could not be read: {error}") from error


def _lines(path: Path) -> Iterator[Entry]:
    for number, line in enumerate(_decoded(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield _entry(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise TrainingError(f"{path}, line {number}: {error}") from error


def _entry(line: Any) -> Entry:
    if not isinstance(line, dict):
        raise ValueError("not an object")
    given = [name for name in _FIELDS if name in line]
    if len(given) != 1:
        raise ValueError(f"needs exactly one of {', '.join(_FIELDS)}")
    name, value = given[0], line[given[0]]
    kind = line.get("kind", "chat" if name in ("messages", "prompt") else "text")
    if not isinstance(kind, str):
        raise ValueError("kind is not a string")
    if name == "messages":
        messages = tuple((str(message["role"]), str(message["content"])) for message in value)
        if not any(role == "user" for role, _ in messages):
            raise ValueError("messages has no message of the user")
        return Entry(kind, messages=messages)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is not a string")
    if name == "prompt":
        return Entry(kind, messages=(("user", value),))
    return Entry(kind, prefix=value) if name == "prefix" else Entry(kind, text=value)
