"""How much a regular expression or an EBNF may repeat: nested counts multiply what a matcher has to track."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from engines.grammar.errors import GrammarError

MAX_SCHEMA_SECONDS = 10.0
"""CPU seconds of its thread for turning the schemas of one grammar into EBNF."""
_deadline: ContextVar[float] = ContextVar("deadline", default=float("inf"))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Within it, check_time raises once this thread has used so many seconds of CPU time."""
    token = _deadline.set(time.thread_time() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def check_time() -> None:
    """Raises GrammarError if the time is up."""
    if time.thread_time() > _deadline.get():
        raise GrammarError(f"takes more than {MAX_SCHEMA_SECONDS:g} s to turn into a grammar")


MAX_REPETITIONS = 10_000
MAX_NESTED = 128
"""Counts inside counts. (.{0,20}){0,20} can be read in so many ways that one mask takes seconds after ten letters."""
MAX_QUANTIFIERS = 128

# A string literal or character class (skipped), an escaped character, a parenthesis, or a quantifier.
_PART = re.compile(
    r"""\\.|"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[()?*+]|\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}""", re.DOTALL
)


def check_repetition(text: str, *, ebnf: bool) -> None:
    """Raises GrammarError if a count, nested counts (multiplied), or the number of quantifiers is too high.

    In an EBNF, where rules name each other, the largest counts of two rules count as nested.
    """
    rules = re.split(r"^[ \t]*[\w-]+[ \t]*::=", text, flags=re.MULTILINE) if ebnf else [text.replace('"', "'")]
    largest = [_most_repetitions(rule) for rule in rules]
    counted = sorted(largest)[-2:]
    if max(counted) > MAX_REPETITIONS:
        raise GrammarError(f"repeats more than {MAX_REPETITIONS} times")
    if len(counted) == 2 and min(counted) > 1 and counted[0] * counted[1] > MAX_REPETITIONS:
        raise GrammarError(f"has counts in two rules that may multiply to more than {MAX_REPETITIONS}")


def _most_repetitions(text: str) -> int:
    quantifiers = 0
    nested = [1]  # by open parenthesis: the most repetitions inside it so far
    last = 1  # repetitions within what a quantifier would apply to
    for part in _PART.finditer(text):
        symbol = part[0]
        if symbol == "(":
            nested.append(1)
            last = 1
        elif symbol == ")":
            last = nested.pop() if len(nested) > 1 else 1
            nested[-1] = max(nested[-1], last)
        elif symbol[0] in "?*+{":
            quantifiers += 1
            # Python refuses to parse very long numbers; a count of ten digits is too high anyway.
            count = max([1, *(int(count[:10]) for count in part.groups() if count)])
            if last > 1 and count > 1 and last * count > MAX_NESTED:
                raise GrammarError(f"has counts in counts that multiply to more than {MAX_NESTED}")
            last *= count
            nested[-1] = max(nested[-1], last)
        else:
            last = 1
    if quantifiers > MAX_QUANTIFIERS:
        raise GrammarError(f"has {quantifiers} quantifiers, more than {MAX_QUANTIFIERS}")
    return nested[-1] if len(nested) == 1 else max(nested)
