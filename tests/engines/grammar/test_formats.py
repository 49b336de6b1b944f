"""Values that each format takes, and values that it refuses."""

from __future__ import annotations

import pytest

from engines.grammar.automata import Atom
from engines.grammar.formats import FORMATS
from engines.grammar.strings import string_automaton
from tests.engines.grammar.walk import accepts

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
