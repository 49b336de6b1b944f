"""Patterns as automata, against Python's re."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from engines.grammar.automata import Atom, matches
from engines.grammar.errors import GrammarError
from engines.grammar.regex_language import RegexLanguage
from engines.grammar.regex_syntax import parse
from engines.grammar.strings import string_automaton, string_language
from tests.engines.grammar.walk import accepts

PATTERNS = [
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", r"^(?=.*[0-9])[a-z0-9]{4}$", r"^[a-z]+(?<!b)$", r"^\bab\b$", r"^a+?$",
    r"(?<=a)b(?!c)", r"^(a|b(?!b))*$", r"\bab\b", r"^(?=.*\d)(?=.*[a-z]).{2,4}$", r"a{2}|^b$", r"^((?!ab).)*$",
    r"(?<!^)a", r"x*", r"^(?:(?=a)[ab]|c)+$", r"^(?!(?!a)).b", r"(?<=a.)c|(?<!\d)-", r"^(?P<x>a)(b|(?=c))c?$",
    r"\Bb", r"^(?:a(?!b)|b(?=a))*c$", r"", r"a$|^$", r"^(?!(?=ab|(?!c)b))", r"(?<=(?<!b)a)b", r"^[^a-c1]*[\d.]$",
]  # fmt: skip


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


def test_a_pattern_matches_anywhere_and_a_format_from_end_to_end() -> None:
    tree = parse("ab?")
    for whole, taken in ((False, ["a", "ab", "xay"]), (True, ["a", "ab"])):
        language = RegexLanguage(tree, whole=whole)
        assert [t for t in ("", "a", "ab", "xay", "b") if matches(Atom("any"), lambda _, it=language: it, t)] == taken


def test_an_expression_with_too_many_readings_is_refused() -> None:
    """Each letter may be the first of its own match, and all of them are followed."""
    language = RegexLanguage(parse("a.{450}b"))
    state = language.start()
    with pytest.raises(GrammarError, match="too many ways"):  # noqa: PT012
        for _ in range(460):
            state = language.step(state, ord("a")) or state
