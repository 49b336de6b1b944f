"""Rows of a data set, in the shapes that people's files have, made into prompts.

Read are a bare string; `prompt` (a string, or a list of turns); `question`; `turns` (MT-Bench, Spec-Bench); `messages`
(OpenAI's form, asked up to the last user's message); and `conversations` (ShareGPT: its first human turn, as
`vllm bench serve` takes it). `answer` or `reference`, a string beside them, is the right answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tandem.bench.errors import BenchError
from tandem.bench.prompts import Prompt

MAX_FILE_BYTES = 2**30
_TEXT_KEYS = ("prompt", "question", "text", "instruction")
_HUMAN = ("human", "user")


def read_file(path: Path, kind: str, *, raw: bool = False) -> list[Prompt]:
    """The prompts of a .jsonl, .json or .parquet file. Raises BenchError, which names file and line."""
    if not path.is_file():
        raise BenchError(f"{path}: there is no such file")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise BenchError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB")
    found = list(prompts_of(_rows(path), kind, str(path), raw=raw))
    if not found:
        raise BenchError(f"{path}: no prompt in it")
    return found


def prompts_of(rows: Iterable[tuple[str, Any]], kind: str, where: str, *, raw: bool = False) -> Iterator[Prompt]:
    """One prompt of every (place, row). Rows with nothing to ask are left out; raises BenchError if all are."""
    empty = None
    some = False
    for number, (place, row) in enumerate(rows):
        try:
            history, turns = _asked(row)
        except ValueError as error:
            raise BenchError(f"{where}{place}: {error}") from None
        if not turns:
            empty = empty or place
            continue
        some = True
        if raw and (history or len(turns) > 1):
            raise BenchError(f"{where}{place}: a conversation can't be completed as raw text")
        yield Prompt(f"{kind}/{number}", _category(row) or kind, turns, history, _answer(row), raw)
    if empty is not None and not some:
        raise BenchError(f"{where}{empty}: nothing to ask in it")


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix == ".parquet":
        yield from enumerate_rows(_parquet(path))
        return
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise BenchError(f"{path}: it is not UTF-8 text") from None
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror or error}") from None
    if path.suffix == ".json" and text.lstrip().startswith("["):
        try:
            yield from enumerate_rows(json.loads(text))
        except ValueError as error:
            raise BenchError(f"{path}: no JSON: {error}") from None
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield f", line {number}", json.loads(line)
            except ValueError as error:
                raise BenchError(f"{path}, line {number}: no JSON: {error}") from None


def enumerate_rows(rows: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for number, row in enumerate(rows):
        yield f", row {number}", row


def _parquet(path: Path) -> list[Any]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise BenchError(f"{path}: reading parquet needs pyarrow: pip install -e '.[bench]'") from None
    try:
        found: list[Any] = parquet.read_table(path).to_pylist()
    except (ArrowException, OSError) as error:
        raise BenchError(f"{path}: {error}") from None
    return found


def _asked(row: Any) -> tuple[tuple[Mapping[str, str], ...], tuple[str, ...]]:
    """History and turns. Raises ValueError for a row of no known shape."""
    if isinstance(row, str):
        return (), _said([row])
    if not isinstance(row, dict):
        raise ValueError("neither a string nor an object")
    if "messages" in row:
        return _conversation(row["messages"])
    if "conversations" in row or "conversation" in row:
        turns = row.get("conversations") or row.get("conversation") or []
        if isinstance(turns, list) and turns and isinstance(turns[0], dict) and "role" in turns[0]:
            return _conversation(turns)
        return (), _said(_first_human(turns))
    if "turns" in row:
        return (), _said(row["turns"])
    for key in _TEXT_KEYS:
        if row.get(key):
            value = row[key]
            if isinstance(value, list) and value and isinstance(value[0], dict):
                return _conversation(value)
            return (), _said(value if isinstance(value, list) else [value])
    if any(key in row for key in _TEXT_KEYS):
        return (), ()
    raise ValueError(f"no field that is known ({', '.join((*_TEXT_KEYS, 'turns', 'messages', 'conversations'))})")


def _said(turns: Any) -> tuple[str, ...]:
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise ValueError("its turns are not strings")
    return tuple(turn for turn in turns if turn.strip())


def _first_human(turns: Any) -> list[str]:
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise ValueError("its conversation is no list of turns")
    return [str(turn.get("value") or "") for turn in turns if turn.get("from") in _HUMAN][:1]


def _conversation(messages: Any) -> tuple[tuple[Mapping[str, str], ...], tuple[str, ...]]:
    """What stands before the last message of the user, and that message."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError("its messages are no list of objects")
    told = [{"role": str(message.get("role")), "content": message.get("content") or ""} for message in messages]
    if not all(isinstance(message["content"], str) for message in told):
        raise ValueError("a message's content is no string")
    last = max((place for place, message in enumerate(told) if message["role"] == "user"), default=None)
    if last is None:
        return (), ()
    return tuple(told[:last]), _said([told[last]["content"]])


def _answer(row: Any) -> str | None:
    if not isinstance(row, dict):
        return None
    found = row.get("answer", row.get("reference"))
    return str(found) if isinstance(found, (str, int, float)) and not isinstance(found, bool) else None


def _category(row: Any) -> str | None:
    found = row.get("category") if isinstance(row, dict) else None
    return found if isinstance(found, str) and found else None
