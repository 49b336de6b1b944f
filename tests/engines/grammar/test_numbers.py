"""Numbers as automata, against exact fractions."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest

from engines.grammar.automata import And, Atom, matches
from engines.grammar.numbers import MAX_PLACES, exact, number_automaton, number_language
from tests.engines.grammar.walk import accepts

BOUNDS: list[tuple[float, float]] = [(0, 20), (-1.5, 3), (-20, -0.5), (1, 100), (-0.25, 0.25), (9.99, 10.01)]


@pytest.mark.parametrize("step", [0, 5, 7, 0.5, 0.1, 0.25, 1.5, 0.03])
@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_numbers_are_compared_exactly(step: float, low: float, high: float) -> None:
    parts = [Atom("spelling"), Atom("at_least", exact(low)), Atom("below", exact(high))]
    if step:
        parts.append(Atom("multiple", exact(step)))
    automaton = number_automaton(And(tuple(parts)))
    for hundredths in range(-2500, 12_000):
        value = Fraction(hundredths, 100)
        expected = exact(low) <= value < exact(high) and (not step or value % exact(step) == 0)
        for text in (f"{Decimal(hundredths) / 100:f}", f"{Decimal(hundredths) / 100:.4f}"):
            if not (text.startswith("-") and value == 0):
                assert accepts(automaton, text) == expected, text


def test_the_other_bounds_and_spellings() -> None:
    for kind, right in (("at_most", "<="), ("above", ">"), ("equal", "==")):
        for bound in (-1.5, 0, 2, 10.25):
            automaton = number_automaton(And((Atom("spelling"), Atom(kind, exact(bound)))))
            for value in (-15, -1.5, -1.4, -1, 0, 0.5, 2, 2.5, 10, 10.25, 10.3, 102.5):
                assert accepts(automaton, repr(value)) == eval(f"{value} {right} {bound}"), (kind, bound, value)
    spelling = number_automaton(Atom("spelling"))
    assert [t for t in ("-0", "-0.0", "01", ".5", "1.", "--1", "", "1e5", "-") if accepts(spelling, t)] == []
    assert matches(Atom("spelling"), number_language, "1." + "0" * MAX_PLACES)
    assert not matches(Atom("spelling"), number_language, "1." + "0" * (MAX_PLACES + 1)), "zeros come to an end"
    assert all(matches(Atom("whole"), number_language, text) for text in ("0", "-12"))
    assert not matches(Atom("whole"), number_language, "1.0")
    assert matches(And((Atom("spelling"), Atom("integer"))), number_language, "1.0")
