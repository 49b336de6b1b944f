"""Whether an answer is right, where the data set knows."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")
_MARK = "####"
"""What stands before the result in GSM8K's answers (Cobbe et al. 2021)."""


def is_right(text: str, answer: str) -> bool | None:
    """Whether the last number of `text` is the answer's; None if the answer is no number, so that nothing tells."""
    wanted = answer.rpartition(_MARK)[2].strip()
    right = _value(wanted)
    if right is None:
        return None
    numbers = _NUMBER.findall(text.rpartition(_MARK)[2] if _MARK in text else text)
    return bool(numbers) and _value(numbers[-1]) == right


def _value(text: str) -> float | None:
    if not _NUMBER.fullmatch(text):
        return None
    return float(text.replace(",", "").replace("$", ""))
