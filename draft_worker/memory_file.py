"""The memory of answers on disk: read at start, written at the end and now and then, if `history_file` names a place.

One JSON object a line: a header, then scope and token ids of each answer, least recently used first.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from draft_worker.memory import AnswerMemory

logger = logging.getLogger(__name__)

_HEADER = {"tandem_history": 1}
_LONGEST_LINE = 16 * 2**20


def load(memory: AnswerMemory, path: Path) -> None:
    """Add what the file holds to the memory. A file that can't be read is a warning: drafts are all it could bring."""
    if not path.exists():
        return
    try:
        with path.open(encoding="utf-8") as file:
            if json.loads(file.readline(_LONGEST_LINE)) != _HEADER:
                raise ValueError("it is no history file of this version")
            while line := file.readline(_LONGEST_LINE):
                scope, token_ids = json.loads(line)
                if not isinstance(scope, str) or not all(
                    type(token) is int and 0 <= token < 2**31 for token in token_ids
                ):
                    raise ValueError("a line that is no answer")
                memory.add(scope, token_ids)
    except (OSError, ValueError, TypeError) as error:
        logger.warning("the history file %s is not read to its end: %s", path, error)
    else:
        logger.info("%d tokens of history are read from %s", memory.tokens, path)


def save(answers: Iterable[tuple[str, list[int]]], path: Path) -> None:
    """Write the file in one step, readable by its owner alone. Failing is a warning, too."""
    temporary = path.with_name(path.name + ".new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(_HEADER) + "\n")
            file.writelines(json.dumps(answer) + "\n" for answer in answers)
        temporary.replace(path)
    except OSError as error:
        logger.warning("the history cannot be written to %s: %s", path, error)
