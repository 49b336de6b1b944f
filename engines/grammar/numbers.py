"""What a schema says about numbers, as languages over their digits.

A constrained number is written without an exponent, 0 without a minus sign. Values are compared exactly, as decimals:
0.3 is a multiple of 0.1, by JSON Schema's rules, whatever binary floating point makes of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from engines.grammar.automata import Atom, Automaton, Expr, Language, build
from engines.grammar.charsets import CharSet, union
from engines.grammar.errors import GrammarError

MAX_DIGITS = 40
MAX_PLACES = 17
"""Digits that a fraction may have: no 64-bit float from 0.1 on needs more, and a small model that has begun to write
zeros comes to an end."""
MAX_REMAINDERS = 1_500
_MINUS, _POINT = ord("-"), ord(".")
_CHARSETS: tuple[CharSet, ...] = tuple(((ord(c), ord(c)),) for c in "-.0123456789")


def exact(value: int | float) -> Fraction:
    """The decimal that was written, not the binary number that came of it."""
    return Fraction(Decimal(repr(value)))


class _Spelling:
    """-?(0|[1-9][0-9]*)(.[0-9]{1,MAX_PLACES})? without a negative zero; `whole`: without the fraction."""

    charsets = _CHARSETS

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole

    def start(self) -> tuple[str, bool, bool, int]:
        return "start", False, True, 0  # phase, negative or not, zero so far or not, digits of the fraction

    def step(self, state: tuple[str, bool, bool, int], point: int) -> tuple[str, bool, bool, int] | None:
        where, negative, zero, places = state
        if point == _MINUS:
            return ("minus", True, True, 0) if where == "start" else None
        if point == _POINT:
            return ("point", negative, zero, 0) if where in ("zero", "digits") and not self._whole else None
        zero = zero and point == ord("0")
        if where in ("start", "minus"):
            return "zero" if zero else "digits", negative, zero, 0
        if where in ("point", "fraction"):
            return ("fraction", negative, zero, places + 1) if places < MAX_PLACES else None
        return ("digits", negative, False, 0) if where == "digits" else None

    def accepts(self, state: tuple[str, bool, bool, int]) -> bool:
        where, negative, zero, _ = state
        return where in ("zero", "digits", "fraction") and not (negative and zero)


@dataclass(frozen=True, slots=True)
class _State:
    negative: bool = False
    digits: int = 0  # of the integer part, up to one more than the bound has
    place: int | None = None  # of the fraction, None before the point
    order: int = 0  # how the digits so far compare with the bound's
    zero: bool = True


class _Compared:
    """Numbers below, at or above a bound, by the signs of (number - bound) that are allowed."""

    charsets = _CHARSETS

    def __init__(self, bound: Fraction, allowed: frozenset[int]) -> None:
        text = f"{_decimal(abs(bound)):f}"
        self._whole, _, self._fraction = text.partition(".")
        self._fraction = self._fraction.rstrip("0")
        self._negative = bound < 0
        self._zero = bound == 0
        self._allowed = allowed

    def start(self) -> _State:
        return _State()

    def step(self, state: _State, point: int) -> _State:
        if point == _MINUS:
            return _State(negative=True)
        if point == _POINT:
            return _State(state.negative, 0, 0, self._order_of_integer(state), state.zero)
        digit, zero = point - ord("0"), state.zero and point == ord("0")
        if state.place is None:
            order = state.order
            if order == 0 and state.digits < len(self._whole):
                order = _sign(digit - int(self._whole[state.digits]))
            digits = min(state.digits + 1, len(self._whole) + 1)
            return _State(state.negative, digits, None, order, zero)
        if state.order:
            return _State(state.negative, 0, 0, state.order, zero)
        ours = int(self._fraction[state.place]) if state.place < len(self._fraction) else 0
        place = min(state.place + 1, len(self._fraction))
        return _State(state.negative, 0, place, _sign(digit - ours), zero)

    def accepts(self, state: _State) -> bool:
        order = self._order_of_integer(state) if state.place is None else state.order
        if order == 0 and self._fraction[state.place or 0 :]:
            order = -1
        if state.negative and not state.zero:
            order = -order if self._negative else -1
        elif self._negative:
            order = 1
        return order in self._allowed

    def _order_of_integer(self, state: _State) -> int:
        return _sign(state.digits - len(self._whole)) or state.order


class _Multiple:
    """Multiples of a positive decimal, unit / 10 ** places."""

    charsets = _CHARSETS

    def __init__(self, divisor: Fraction) -> None:
        places = 0
        while divisor.denominator != 1:
            divisor *= 10
            places += 1
        self._unit, self._places = int(divisor), places
        if self._unit * (places + 1) > MAX_REMAINDERS:
            raise GrammarError("takes more remainders than are supported")

    def start(self) -> tuple[int, int | None]:
        return 0, None

    def step(self, state: tuple[int, int | None], point: int) -> tuple[int, int | None] | None:
        remainder, place = state
        if point == _MINUS:
            return state
        if point == _POINT:
            return remainder, 0
        digit = point - ord("0")
        if place == self._places:
            return state if digit == 0 else None
        return (remainder * 10 + digit) % self._unit, None if place is None else place + 1

    def accepts(self, state: tuple[int, int | None]) -> bool:
        remainder, place = state
        missing: int = 10 ** (self._places - (place or 0))
        return remainder * missing % self._unit == 0


@lru_cache(maxsize=512)
def number_language(atom: Atom) -> Language:
    """`spelling`, `whole` (without a fraction), `integer` (of whatever spelling), or one with a Fraction:

    `multiple`, `at_least`, `at_most`, `above`, `below`, `equal`. Raises GrammarError.
    """
    if atom.kind in ("spelling", "whole"):
        return _Spelling(whole=atom.kind == "whole")
    if atom.kind == "integer":
        return _Multiple(Fraction(1))
    assert isinstance(atom.value, Fraction)
    if len(str(atom.value.numerator)) > MAX_DIGITS or len(str(atom.value.denominator)) > MAX_DIGITS:
        raise GrammarError(f"has a number of more than {MAX_DIGITS} digits")
    if atom.kind == "multiple":
        return _Multiple(atom.value)
    signs = {"at_least": {0, 1}, "at_most": {-1, 0}, "above": {1}, "below": {-1}, "equal": {0}}[atom.kind]
    return _Compared(atom.value, frozenset(signs))


@lru_cache(maxsize=256)
def number_automaton(expr: Expr) -> Automaton:
    """Raises GrammarError; its message follows the place."""
    return build(expr, number_language, alphabet=union(*_CHARSETS))


def _decimal(value: Fraction) -> Decimal:
    places = 0
    while value.denominator != 1:
        value *= 10
        places += 1
    return Decimal((0, tuple(int(digit) for digit in str(int(value))), -places))


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)
