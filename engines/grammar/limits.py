"""How much a regular expression or an EBNF may repeat: nested counts multiply what a matcher has to keep in mind."""

from __future__ import annotations

import re

from engines.grammar.errors import GrammarError

MAX_REPETITIONS = 10_000
MAX_QUANTIFIERS = 256

# A string literal or character class (skipped), an escaped character, a parenthesis, or a quantifier.
_PART = re.compile(r"""\\.|"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[()?*+]|\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}""", re.DOTALL)


def check_repetition(text: str, *, literals: bool) -> None:
    """Raises GrammarError where counts nested in counts allow more than MAX_REPETITIONS, or quantifiers are too many.

    `literals`: whether double quotes mark literal text, as they do in an EBNF and not in a regular expression.
    """
    quantifiers = 0
    nested = [1]  # by open parenthesis: the most repetitions inside it so far
    last = 1  # those of what a quantifier would apply to
    for part in _PART.finditer(text if literals else text.replace('"', "'")):
        symbol = part[0]
        if symbol == "(":
            nested.append(1)
            last = 1
        elif symbol == ")":
            last = nested.pop() if len(nested) > 1 else 1
            nested[-1] = max(nested[-1], last)
        elif symbol[0] in "?*+{":
            quantifiers += 1
            counts = [int(count) for count in part.groups() if count and len(count) < 10]
            too_long = any(count and len(count) >= 10 for count in part.groups())
            last *= max([1, *counts])
            nested[-1] = max(nested[-1], last)
            if too_long or last > MAX_REPETITIONS:
                raise GrammarError(f"repeats more than {MAX_REPETITIONS} times, nested counts multiplied")
        else:
            last = 1
    if quantifiers > MAX_QUANTIFIERS:
        raise GrammarError(f"has {quantifiers} quantifiers, more than {MAX_QUANTIFIERS}")
