"""Patterns read into trees: ECMA-262's escapes, classes, groups and counts, and what is refused."""

from __future__ import annotations

import pytest

from engines.grammar.charsets import DIGITS, CharSet, complement
from engines.grammar.errors import GrammarError
from engines.grammar.regex_syntax import (
    BOUNDARY,
    END,
    MAX_CHARS,
    MAX_SIZE,
    NO_BOUNDARY,
    START,
    Alt,
    Chars,
    Look,
    Regex,
    Repeat,
    Seq,
    parse,
    size,
)

A, B = Chars(((97, 97),)), Chars(((98, 98),))


@pytest.mark.parametrize(
    ("pattern", "points"),
    [
        (r"\t\n\v\f\r", [9, 10, 11, 12, 13]),
        (r"\cA\cz\0", [1, 26, 0]),
        (r"\x41\u0042\u{1F600}", [0x41, 0x42, 0x1F600]),
        (r"\uD83D\uDE00", [0x1F600]),  # halves of one character
        (r"\.\/\-\é", [ord(c) for c in "./-é"]),
        ("a{,3}", [ord(c) for c in "a{,3}"]),  # not a count
    ],
)
def test_single_characters(pattern: str, points: list[int]) -> None:
    tree = parse(pattern)
    parts = tree.parts if isinstance(tree, Seq) else (tree,)
    assert list(parts) == [Chars(((point, point),)) for point in points]


@pytest.mark.parametrize(
    ("pattern", "charset"),
    [
        (r"\d", DIGITS),
        (r"\D", complement(DIGITS)),
        (".", complement(((10, 10), (13, 13), (0x2028, 0x2029)))),
        ("[a-cx]", ((97, 99), (120, 120))),
        ("[a-]", ((45, 45), (97, 97))),
        ("[^a-c]", complement(((97, 99),))),
        (r"[\b\d]", ((8, 8), (48, 57))),
        (r"[\]\^]", ((93, 94),)),
        ("[]", ()),
    ],
)
def test_sets(pattern: str, charset: CharSet) -> None:
    assert parse(pattern) == Chars(charset)


@pytest.mark.parametrize(
    ("pattern", "tree"),
    [
        ("", Seq(())),
        ("a|b", Alt((A, B))),
        ("a|", Alt((A, Seq(())))),
        ("(?:ab)|(a)", Alt((Seq((A, B)), A))),
        ("(?<x>a)(?P<y>b)", Seq((A, B))),
        ("^a$", Seq((START, A, END))),
        (r"\b\B", Seq((BOUNDARY, NO_BOUNDARY))),
        ("a*b+", Seq((Repeat(A, 0, None), Repeat(B, 1, None)))),
        ("a??", Repeat(A, 0, 1)),  # lazy: the same texts
        ("a{2}", Repeat(A, 2, 2)),
        ("a{2,}", Repeat(A, 2, None)),
        ("a{2,3}", Repeat(A, 2, 3)),
        ("(?=a)", Look(A, ahead=True, negative=False)),
        ("(?!a)", Look(A, ahead=True, negative=True)),
        ("(?<=a)", Look(A, ahead=False, negative=False)),
        ("(?<!a)", Look(A, ahead=False, negative=True)),
    ],
)
def test_trees(pattern: str, tree: Regex) -> None:
    assert parse(pattern) == tree


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(a", "unclosed group"),
        ("a)", r"unmatched \)"),
        ("[a", "ends within a class"),
        ("[b-a]", "end is before its start"),
        (r"[\d-z]", "not single characters"),
        ("a{3,2}", "end is before its start"),
        ("*a", "nothing to repeat"),
        ("a**", "nothing to repeat"),
        ("^*", "anchor or a look-around"),
        (r"\q", r"unknown escape \\q"),
        (r"\c1", "without a letter"),
        (r"\x4", "hexadecimal"),
        (r"\uD83D", "not a character"),
        (r"\u{110000}", "not a character"),
        (r"\p", "property in braces"),
        (r"a\Z", "ECMA-262 does not have"),
        ("a" * (MAX_CHARS + 1), "characters"),
        (f"a{{{MAX_SIZE + 1}}}", "repeats more"),
    ],
)
def test_what_is_wrong_is_named(pattern: str, problem: str) -> None:
    with pytest.raises(GrammarError, match=problem):
        parse(pattern)


def test_the_size_is_that_without_counts() -> None:
    assert size(parse("(?:ab){3}")) == 3 * size(parse("ab"))
    assert size(parse("a{2,5}")) == 5
