"""What is wrong with a grammar, for the client that sent it."""

from __future__ import annotations

from protocol.errors import BadRequest


class GrammarError(BadRequest):
    """The grammar cannot be honoured, or not within bounds: a 400 whose message says why. `field` is a dotted path."""

    code = "invalid_grammar"

    def __init__(self, message: str, field: str = "grammar.value") -> None:
        super().__init__(message, field)


class Overloaded(GrammarError):
    """Not the grammar's fault, so it is not remembered for it."""


def reason(error: BaseException) -> str:
    """xgrammar's message without the source location that it begins with."""
    text = str(error).strip().split("\n")[0]
    _, separator, tail = text.partition(".cc:")
    if separator and ": " in tail:
        text = tail.partition(": ")[2]
    return text[:500] or "the grammar cannot be compiled"
