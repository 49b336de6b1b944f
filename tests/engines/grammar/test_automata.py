"""Patterns, formats and numbers as automata, against Python's re and exact fractions."""

from __future__ import annotations

import itertools
import random
import re
from decimal import Decimal
from fractions import Fraction

import pytest
import regex

from engines.grammar.automata import And, Atom, Automaton, Expr, Not, Or, matches
from engines.grammar.charsets import ANY, complement, contains, partition, property_set
from engines.grammar.formats import FORMATS
from engines.grammar.numbers import MAX_PLACES, exact, number_automaton, number_language
from engines.grammar.strings import string_automaton, string_language

PATTERNS = [
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", r"^(?=.*[0-9])[a-z0-9]{4}$", r"^[a-z]+(?<!b)$", r"^\bab\b$", r"^a+?$",
    r"(?<=a)b(?!c)", r"^(a|b(?!b))*$", r"\bab\b", r"^(?=.*\d)(?=.*[a-z]).{2,4}$", r"a{2}|^b$", r"^((?!ab).)*$",
    r"(?<!^)a", r"x*", r"^(?:(?=a)[ab]|c)+$", r"^(?!(?!a)).b", r"(?<=a.)c|(?<!\d)-", r"^(?P<x>a)(b|(?=c))c?$",
    r"\Bb", r"^(?:a(?!b)|b(?=a))*c$", r"", r"a$|^$", r"^(?!(?=ab|(?!c)b))", r"(?<=(?<!b)a)b", r"^[^a-c1]*[\d.]$",
]  # fmt: skip


def accepts(automaton: Automaton, text: str) -> bool:
    state: int | None = 0 if automaton.edges else None
    for character in text:
        if state is None:
            return False
        edges = automaton.edges[state].items()
        state = next((target for target, charset in edges if contains(charset, ord(character))), None)
    return state in automaton.accepting


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_match_what_re_matches(pattern: str) -> None:
    atom = Atom("pattern", pattern)
    automaton = string_automaton(atom)
    rng = random.Random(pattern)
    texts = ["".join(text) for length in range(5) for text in itertools.product("abc1.-", repeat=length)]
    texts += ["".join(rng.choices("abc1.-_ ", k=rng.randrange(5, 10))) for _ in range(1000)]
    if "(?P<" in pattern:
        assert len(automaton.edges) > 1
    for text in texts:
        expected = re.search(pattern, text) is not None
        assert accepts(automaton, text) == expected, text
    for text in texts[::50]:
        assert matches(atom, string_language, text) == (re.search(pattern, text) is not None)


def test_named_groups_of_both_spellings() -> None:
    for pattern in (r"^(?<year>\d{4})$", r"^(?P<year>\d{4})$"):
        assert accepts(string_automaton(Atom("pattern", pattern)), "2024")


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


@pytest.mark.parametrize("name", ["L", "Lu", "Script=Greek", "Extended_Pictographic", "P"])
def test_properties_are_those_of_the_regex_package(name: str) -> None:
    pattern = regex.compile(rf"\p{{{name}}}")
    charset = property_set(name)
    for point in range(0, 0x20000, 31):
        if contains(ANY, point):
            assert contains(charset, point) == (pattern.match(chr(point)) is not None)


def test_a_partition_tells_apart_what_the_sets_do() -> None:
    sets = [((48, 57),), ((53, 70),), complement(((60, 60),))]
    parts = partition(sets)
    for charset in sets:
        for part in parts:
            inside = {contains(charset, point) for low, high in part for point in (low, (low + high) // 2, high)}
            assert len(inside) == 1
    assert sum(high - low + 1 for part in parts for low, high in part) == 0x110000 - 0x800


FORMAT_VALUES: list[tuple[str, list[str], list[str]]] = [
    ("date", ["2024-02-29", "2000-02-29", "2023-12-31"],
     ["2023-02-29", "1900-02-29", "2024-04-31", "0000-01-01", "2024-1-1", "2024-13-01", " 2024-01-01", "2024-01-01\n"]),
    ("time", ["12:00:00Z", "23:59:59.123+05:30", "00:00:00z"], ["24:00:00Z", "12:60:00Z", "12:00:60Z", "12:00:00", "12:00Z"]),  # noqa: E501
    ("date-time", ["2024-02-29T00:00:00Z"], ["2023-02-29T00:00:00Z", "2024-02-29 00:00:00Z", "2024-02-29T25:00:00Z"]),
    ("duration", ["P1Y2M3D", "PT1H", "P2W", "P1DT2M3S"], ["P", "PT", "P1YT", "1D", "P1D2W", "PT1S2M", "P1Y3D"]),
    ("email", ["a@b.co", "a.b+c@d-e.org"], ["nope", "a..b@b.co", ".a@b.co", "a@b-.co", '"q"@b.co', "a@b"]),
    ("hostname", ["a", "a-b.example.com"], ["-a", "a-", "a..b", "", "a_b"]),
    ("ipv4", ["1.2.3.4", "255.255.255.255"], ["999.1.1.1", "1.2.3", "01.2.3.4", "256.1.1.1"]),
    ("ipv6", ["::", "::1", "1::", "2001:db8::8:800:200c:417a", "::ffff:1.2.3.4", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::"],
     ["1", ":1", "1:2:3:4:5:6:7:8:9", "1::2::3", "12345::", "1:2:3:4:5:6:7", "::1.2.3"]),
    ("uri", ["http://a.b", "mailto:x@y.z", "urn:a:b", "http://u@h:80/p?q#f", "a:"], ["a b", "//x", "http://a b", "1a:b", "a:%zz"]),  # noqa: E501
    ("uri-reference", ["", "a/b", "//h/p", "#f", "http://a"], ["a b", "\\", ":a"]),
    ("uri-template", ["http://a/{b}", "{?x,y*}", "x{a:3}"], ["{", "}", "{a b}", "{}"]),
    ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"]),  # noqa: E501
    ("json-pointer", ["", "/a~0b/~1", "/"], ["a", "/~", "/~2"]),
    ("relative-json-pointer", ["0", "1/a", "2#"], ["", "/a", "01", "-1"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "good", "bad"), FORMAT_VALUES)
def test_formats(name: str, good: list[str], bad: list[str]) -> None:
    automaton = string_automaton(Atom("format", name))
    assert [text for text in good if not accepts(automaton, text)] == []
    assert [text for text in bad if accepts(automaton, text)] == []


def test_every_format_has_an_automaton_and_most_have_values_above() -> None:
    assert all(string_automaton(Atom("format", name)).edges for name in FORMATS)
    untested = set(FORMATS) - {name for name, *_ in FORMAT_VALUES}
    assert untested == {"idn-email", "idn-hostname", "iri", "iri-reference"}


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
