"""Automata combined with and, or and not."""

from __future__ import annotations

from engines.grammar.automata import And, Atom, Expr, Not, Or
from engines.grammar.strings import string_automaton
from tests.engines.grammar.walk import accepts


def test_combinations_are_those_of_sets() -> None:
    a, b = Atom("pattern", "^a[ab]*$"), Atom("pattern", "b$")
    either: list[tuple[Expr, list[bool]]] = [
        (And((a, b)), [True, False, False, False]),
        (Or((a, b)), [True, True, True, False]),
        (And((a, Not(b))), [False, True, False, False]),
        (Not(Or((a, b))), [False, False, False, True]),
    ]
    for expr, expected in either:
        assert [accepts(string_automaton(expr), text) for text in ("ab", "a", "bb", "c")] == expected
    assert string_automaton(And((a, Not(a)))).edges == ()
