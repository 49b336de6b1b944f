"""JSON that keeps its values: integers of any size, and strings that hold half a surrogate pair.

orjson, used elsewhere, makes floats of integers above 64 bits and refuses lone surrogates. A model under a JSON grammar
may write both, and clients send them back.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

_SURROGATE = re.compile("[\ud800-\udfff]")


class TooLarge(ValueError):
    """JSON, but a number in it is beyond what a float holds."""


def loads(text: str | bytes, number: Callable[[str], Any] | None = None) -> Any:
    """`number` makes the value of a number that is not written as an integer; None: a float.

    Raises ValueError for what is not JSON or UTF-8, or is nested too deeply, and TooLarge for a number that no float
    holds.
    """
    decoded = text.decode() if isinstance(text, bytes) else text
    try:
        return json.loads(decoded, parse_constant=_no_constant, parse_float=number or _finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        if "int_max_str_digits" not in str(error):
            raise
        # Python refuses to read such integers, as that takes time quadratic in their length.
        raise ValueError(f"it holds an integer of more than {sys.get_int_max_str_digits()} digits") from None


def dumps(value: Any) -> str:
    """Compact. Raises ValueError if it is nested too deeply."""
    try:
        return spelled(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def spelled(text: str) -> str:
    r"""JSON text with each lone surrogate written as JSON writes it, \ud800, since UTF-8 has no bytes for it."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def encodable(text: str) -> str:
    """Plain text with U+FFFD for each lone surrogate, as encoders of UTF-8 write it."""
    return _SURROGATE.sub("\ufffd", text)


def is_encodable(text: str) -> bool:
    return _SURROGATE.search(text) is None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise TooLarge(f"{text[:40]} is too large a number")
    return value
