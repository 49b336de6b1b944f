"""What a schema says about strings, as languages over their characters and as text between quotes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeGuard

from engines.grammar.automata import And, Atom, Automaton, Expr, Language, Or, build, matches
from engines.grammar.charsets import ANY, CharSet
from engines.grammar.errors import GrammarError
from engines.grammar.formats import FORMATS
from engines.grammar.regex_language import RegexLanguage
from engines.grammar.regex_syntax import Alt, literal, parse

ANY_STRING: Expr = And(())
MAX_COUNTED_STATES = 2_500


@dataclass(frozen=True, slots=True)
class _Length:
    """Strings of at least `least` and at most `most` characters (code points)."""

    least: int
    most: int | None

    charsets = (ANY,)

    def start(self) -> int:
        return 0

    def step(self, state: int, point: int) -> int | None:
        if self.most is None:
            return min(state + 1, self.least)
        return state + 1 if state < self.most else None

    def accepts(self, state: int) -> bool:
        return state >= self.least


@lru_cache(maxsize=512)
def string_language(atom: Atom) -> Language:
    """`pattern`, `format`, `least`, `most` (of length), or `in` (one of a tuple of strings). Raises GrammarError."""
    value: Hashable = atom.value
    if atom.kind == "pattern":
        return RegexLanguage(parse(str(value)))
    if atom.kind == "format":
        return RegexLanguage(parse(FORMATS[str(value)]), whole=True)
    if atom.kind == "in":
        assert isinstance(value, tuple)
        return RegexLanguage(Alt(tuple(literal(text) for text in value)), whole=True)
    assert isinstance(value, int)
    return _Length(value, None) if atom.kind == "least" else _Length(0, value)


def finite(expr: Expr) -> list[str] | None:
    """All the strings, if a list of values bounds them; None if finding them takes an automaton."""
    if isinstance(expr, Atom) and expr.kind == "in":
        assert isinstance(expr.value, tuple)
        return list(expr.value)
    if isinstance(expr, And):
        lists = [known for known in map(finite, expr.parts) if known is not None]
        return [text for text in lists[0] if matches(expr, string_language, text)] if lists else None
    if isinstance(expr, Or):
        known = [finite(part) for part in expr.parts]
        if all(texts is not None for texts in known):
            return list(dict.fromkeys(text for texts in known if texts is not None for text in texts))
    return None


@lru_cache(maxsize=256)
def string_automaton(expr: Expr) -> Automaton:
    """Raises GrammarError; its message follows the place.

    Where a pattern or format beside maxLength would take more than MAX_COUNTED_STATES states, fewer characters are
    allowed than maxLength says: all such strings are valid.
    """
    tops = [part for part in expr.parts if _is_most(part)] if isinstance(expr, And) else []
    rest = tuple(part for part in expr.parts if part not in tops) if isinstance(expr, And) else ()
    if tops and any(not isinstance(part, Atom) or part.kind in ("pattern", "format") for part in rest):
        most = min(int(str(part.value)) for part in tops)
        free = string_automaton(And(rest))
        states = len(free.edges)
        if states * most > MAX_COUNTED_STATES and states:
            shortest = _shortest(free)
            if shortest > most:
                return Automaton((), frozenset())
            counted = MAX_COUNTED_STATES // states
            if shortest > counted:
                raise GrammarError(
                    f"asks for strings of {shortest} characters or more, counted up to {most}: "
                    f"that takes too large an automaton; lower the lengths or leave out maxLength"
                )
            most = min(most, counted)
        return build(And((*rest, Atom("most", most))), string_language)
    return build(expr, string_language)


def _shortest(automaton: Automaton) -> int:
    """How many characters the shortest text has; there is one."""
    length, reached, level = 0, {0}, {0}
    while automaton.accepting.isdisjoint(level):
        level = {target for state in level for target in automaton.edges[state]} - reached
        reached |= level
        length += 1
    return length


def _is_most(expr: Expr) -> TypeGuard[Atom]:
    return isinstance(expr, Atom) and expr.kind == "most"


def any_string(expr: Expr) -> bool:
    """Whether there is such a string. Raises GrammarError."""
    known = finite(expr)
    return bool(known) if known is not None else bool(string_automaton(expr).edges)


def spelled(charset: CharSet) -> list[str]:
    """EBNF of a set's characters within a JSON string, each in json.dumps' spelling: alternatives, one at least."""
    plain = _ranges(charset, [(0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF)])
    written = [character_class(plain)] if plain else []
    short = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
    points = {point for low, high in charset for point in range(low, min(high, 0x5C) + 1)}
    letters = sorted(ord(letter) for point, letter in short.items() if point in points)
    if letters:
        written.append(r'"\\" ' + character_class([(letter, letter) for letter in letters]))
    for high in (0, 1):
        digits = sorted(ord(f"{p & 15:x}") for p in points if p >> 4 == high and p < 32 and p not in short)
        if digits:
            written.append(rf'"\\u00{high}" ' + character_class([(digit, digit) for digit in digits]))
    return written


def character_class(ranges: list[tuple[int, int]]) -> str:
    """EBNF of one character out of ranges of code points."""
    return "[" + "".join(f"\\U{low:08x}" + (f"-\\U{high:08x}" if high > low else "") for low, high in ranges) + "]"


def _ranges(charset: CharSet, within: list[tuple[int, int]]) -> list[tuple[int, int]]:
    pairs = ((max(a, low), min(b, high)) for a, b in charset for low, high in within)
    return [pair for pair in pairs if pair[0] <= pair[1]]
