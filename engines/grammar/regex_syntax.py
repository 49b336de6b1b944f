"""Regular expressions as JSON Schema has them: ECMA-262's, read into a tree.

https://json-schema.org/draft/2020-12/json-schema-core#section-6.4 and https://tc39.es/ecma262/#sec-patterns
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engines.grammar.charsets import (
    ANY,
    DIGITS,
    LINE_ENDS,
    SPACE,
    WORD,
    CharSet,
    complement,
    property_set,
    union,
)
from engines.grammar.errors import GrammarError

MAX_CHARS = 8_192
MAX_DEPTH = 100
MAX_SIZE = 20_000
"""Characters of an expression once its counts are written out."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    charset: CharSet


@dataclass(frozen=True, slots=True)
class Seq:
    """One after another; none is the empty text."""

    parts: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of several."""

    parts: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`least` to `most` times; `most` None: without limit."""

    part: Regex
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Look:
    """What follows (`ahead`) or comes before matches `part`, or does not (`negative`). Takes no characters."""

    part: Regex
    ahead: bool
    negative: bool


Regex = Chars | Seq | Alt | Repeat | Look

ANYTHING = Repeat(Chars(ANY), 0, None)
START = Look(Chars(ANY), ahead=False, negative=True)
END = Look(Chars(ANY), ahead=True, negative=True)
_BEFORE, _AFTER = Look(Chars(WORD), ahead=False, negative=False), Look(Chars(WORD), ahead=True, negative=False)
_NOT_BEFORE, _NOT_AFTER = Look(Chars(WORD), ahead=False, negative=True), Look(Chars(WORD), ahead=True, negative=True)
BOUNDARY = Alt((Seq((_BEFORE, _NOT_AFTER)), Seq((_NOT_BEFORE, _AFTER))))
NO_BOUNDARY = Alt((Seq((_BEFORE, _AFTER)), Seq((_NOT_BEFORE, _NOT_AFTER))))

_CLASSES = {"d": DIGITS, "w": WORD, "s": SPACE}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_COUNT = re.compile(r"\{(\d{1,9})(,(\d{0,9}))?\}")
_GROUP_NAME = re.compile(r"P?<[^<>=!][^<>]*>")


def parse(pattern: str) -> Regex:
    """The tree of a pattern. Raises GrammarError, its message to follow the pattern's place."""
    if len(pattern) > MAX_CHARS:
        raise GrammarError(f"has more than {MAX_CHARS} characters")
    tree = _Parser(pattern).whole()
    if size(tree) > MAX_SIZE:
        raise GrammarError(f"is longer than {MAX_SIZE} characters once its counts are written out")
    return tree


def literal(text: str) -> Regex:
    """The text itself."""
    return Seq(tuple(Chars(((ord(character), ord(character)),)) for character in text))


def size(node: Regex) -> int:
    """How many single characters it takes to write the expression without counts."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Seq | Alt):
        return 1 + sum(size(part) for part in node.parts)
    if isinstance(node, Repeat):
        return size(node.part) * max(1, node.least, node.most or 0)
    return 1 + size(node.part)


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0

    def whole(self) -> Regex:
        tree = self._alternatives()
        if self._at < len(self._text):
            raise GrammarError("has an unmatched )")
        return tree

    def _take(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _next(self, what: str) -> str:
        if self._at >= len(self._text):
            raise GrammarError(f"ends within {what}")
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self) -> Regex:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise GrammarError(f"is nested deeper than {MAX_DEPTH} groups")
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Alt(tuple(parts))

    def _sequence(self) -> Regex:
        parts: list[Regex] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._quantified())
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def _quantified(self) -> Regex:
        atom = self._atom()
        bounds = self._quantifier()
        if bounds is None:
            return atom
        if isinstance(atom, Look):
            raise GrammarError("repeats an anchor or a look-around")
        self._take("?")  # lazy: another match, but the same texts
        if self._take("+"):
            raise GrammarError("uses a possessive quantifier, which is not supported")
        if self._quantifier() is not None:
            raise GrammarError("has a quantifier with nothing to repeat")
        return Repeat(atom, *bounds)

    def _quantifier(self) -> tuple[int, int | None] | None:
        for symbol, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(symbol):
                return bounds
        match = _COUNT.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        least = int(match[1])
        most = least if match[2] is None else int(match[3]) if match[3] else None
        if most is not None and most < least:
            raise GrammarError("has a count whose end is before its start")
        if max(least, most or 0) > MAX_SIZE:
            raise GrammarError(f"repeats more than {MAX_SIZE} times")
        return least, most

    def _atom(self) -> Regex:
        symbol = self._next("nothing")
        if symbol == "(":
            return self._group()
        if symbol == "[":
            return Chars(self._class())
        if symbol == "^":
            return START
        if symbol == "$":
            return END
        if symbol == ".":
            return Chars(complement(LINE_ENDS))
        if symbol in "*+?":
            raise GrammarError("has a quantifier with nothing to repeat")
        if symbol != "\\":
            return Chars(((ord(symbol), ord(symbol)),))
        if self._take("b"):
            return BOUNDARY
        if self._take("B"):
            return NO_BOUNDARY
        if self._take("A") or self._take("Z") or self._take("z"):
            raise GrammarError(rf"uses \{self._text[self._at - 1]}, which ECMA-262 does not have; use ^ or $")
        if self._at < len(self._text) and (self._text[self._at] in "123456789" or self._take("k<")):
            raise GrammarError("uses a backreference, which is not supported")
        return Chars(self._escape())

    def _group(self) -> Regex:
        look: tuple[bool, bool] | None = None
        if self._take("?"):
            for mark, meaning in (
                ("=", (True, False)), ("!", (True, True)), ("<=", (False, False)), ("<!", (False, True)),
            ):  # fmt: skip
                if self._take(mark):
                    look = meaning
                    break
            else:
                name = _GROUP_NAME.match(self._text, self._at)
                if name is not None:
                    self._at = name.end()
                elif not self._take(":"):
                    raise GrammarError("uses an inline flag or another extension (?…), which is not supported")
        inner = self._alternatives()
        if not self._take(")"):
            raise GrammarError("has an unclosed group")
        return inner if look is None else Look(inner, *look)

    def _class(self) -> CharSet:
        negative = self._take("^")
        parts: list[CharSet] = []
        while not self._take("]"):
            low = self._member()
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                high = self._member()
                if not (_single(low) and _single(high)):
                    raise GrammarError("has a range whose ends are not single characters")
                if high[0][0] < low[0][0]:
                    raise GrammarError("has a range whose end is before its start")
                parts.append(((low[0][0], high[0][0]),))
            else:
                parts.append(low)
        charset = union(*parts)
        return complement(charset) if negative else charset

    def _member(self) -> CharSet:
        symbol = self._next("a class")
        if symbol != "\\":
            return ((ord(symbol), ord(symbol)),)
        if self._take("b"):
            return ((8, 8),)
        return self._escape()

    def _escape(self) -> CharSet:
        symbol = self._next("an escape")
        if symbol.lower() in _CLASSES:
            charset = _CLASSES[symbol.lower()]
            return charset if symbol.islower() else complement(charset)
        if symbol in "pP":
            match = re.compile(r"\{([A-Za-z0-9_=]+)\}").match(self._text, self._at)
            if match is None:
                raise GrammarError(rf"has \{symbol} without a property in braces")
            self._at = match.end()
            try:
                charset = property_set(match[1])
            except ValueError as error:
                raise GrammarError(f"uses an {error}") from None
            return charset if symbol == "p" else complement(charset)
        point = self._code_point(symbol)
        return ((point, point),)

    def _code_point(self, symbol: str) -> int:
        if symbol in _CONTROLS:
            return _CONTROLS[symbol]
        if symbol == "c":
            letter = self._next("an escape")
            if not (letter.isascii() and letter.isalpha()):
                raise GrammarError(r"has \c without a letter")
            return ord(letter) & 31
        if symbol == "0":
            return 0
        if symbol in "xu":
            pattern = r"[0-9a-fA-F]{2}" if symbol == "x" else r"[0-9a-fA-F]{4}|\{[0-9a-fA-F]{1,6}\}"
            match = re.compile(pattern).match(self._text, self._at)
            if match is None:
                raise GrammarError(rf"has \{symbol} without its hexadecimal digits")
            self._at = match.end()
            point = int(match[0].strip("{}"), 16)
            if 0xD800 <= point <= 0xDBFF:
                low = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})").match(self._text, self._at)
                if low is not None:
                    self._at = low.end()
                    return 0x10000 + ((point - 0xD800) << 10) + int(low[1], 16) - 0xDC00
            if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
                raise GrammarError("has an escape of what is not a character")
            return point
        if symbol.isascii() and symbol.isalnum():
            raise GrammarError(rf"has an unknown escape \{symbol}")
        return ord(symbol)


def _single(charset: CharSet) -> bool:
    return len(charset) == 1 and charset[0][0] == charset[0][1]
