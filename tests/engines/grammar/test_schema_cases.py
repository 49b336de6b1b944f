"""Schemas taken apart: which alternatives there are, and what must hold, or must not, in each."""

from __future__ import annotations

from typing import Any

import pytest

from engines.grammar.automata import Atom, Not
from engines.grammar.errors import GrammarError
from engines.grammar.schema_cases import MAX_CASES, Case, Node, cases
from engines.grammar.schema_reading import KINDS, NUMBERS, Document

_TYPED = frozenset({"integer", "fraction", "string", "array", "object", "null", "boolean"})


def always(case: Case) -> bool:
    return True


def split(schema: Any, overlap: Any = always) -> list[list[dict[str, Any]]]:
    """The words of every node that says something of itself, case by case."""
    document = Document(schema)
    combining = {"anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref", "dependentRequired"}
    found = []
    for case in cases((Node(document.schema),), document, overlap):
        assert not any(node.negated for node in case)
        told = [{key: word for key, word in node.schema.words.items() if key not in combining} for node in case]
        found.append([word for word in told if word])
    return found


def kind(*names: str) -> dict[str, Any]:
    return {"type": frozenset(names)}


def test_alternatives_are_cases_and_what_holds_together_is_one() -> None:
    a, b = {"type": "null"}, {"type": "string"}
    assert split({"anyOf": [a, b]}) == [[kind("null")], [kind("string")]]
    assert split({"allOf": [a, b]}) == [[kind("null"), kind("string")]]
    assert split({"$defs": {"a": a}, "$ref": "#/$defs/a", "minItems": 1}) == [[{"minItems": 1}, kind("null")]]
    both = split({"anyOf": [a, b], "allOf": [{"anyOf": [{"minItems": 1}, {"maxItems": 2}]}]})
    assert len(both) == 4
    assert {str(sorted(map(str, case))) for case in both} == {
        str(sorted(map(str, [one, other])))
        for one in (kind("null"), kind("string"))
        for other in ({"minItems": 1}, {"maxItems": 2})
    }


def test_true_says_nothing_and_false_has_no_case() -> None:
    assert split(True) == [[]]
    assert split(False) == []
    assert split({"anyOf": [False, {"type": "null"}]}) == [[kind("null")]]
    assert split({"not": False}) == [[]]


def test_exactly_one_excludes_the_branches_that_overlap() -> None:
    schema = {"oneOf": [{"type": "integer"}, {"minimum": 2}]}
    two = Atom("at_least", 2)
    assert split(schema) == [
        [kind("integer"), {"type": NUMBERS, "number": Not(two)}],
        [{"minimum": two}, {"type": KINDS - {"integer"}}],
    ]
    assert split(schema, overlap=lambda case: False) == [[kind("integer")], [{"minimum": two}]]


def test_if_is_two_cases() -> None:
    schema = {"if": {"type": "null"}, "then": {"minItems": 1}, "else": {"minItems": 2}}
    assert split(schema) == [[kind("null"), {"minItems": 1}], [{"type": KINDS - {"null"}}, {"minItems": 2}]]


def test_a_dependency_is_met_by_leaving_the_property_out() -> None:
    assert split({"dependentRequired": {"a": ["b"]}}) == [[{"lacks": "a"}], [{"required": ["a", "b"]}]]


@pytest.mark.parametrize(
    ("schema", "contrary"),
    [
        ({"enum": [1, 2]}, [[{"exclude": [1, 2]}]]),
        ({"maxLength": 3}, [[{"type": frozenset({"string"}), "text": Not(Atom("most", 3))}]]),
        ({"minItems": 1}, [[{"type": frozenset({"array"}), "maxItems": 0}]]),
        ({"maxProperties": 1}, [[{"type": frozenset({"object"}), "minProperties": 2}]]),
        ({"minItems": 0}, []),  # holds of everything
        ({"required": ["a", "b"]}, [[{"type": frozenset({"object"}), "lacks": name}] for name in "ab"]),
        ({"anyOf": [{"type": "null"}, {"enum": [1]}]}, [[{"type": KINDS - {"null"}}, {"exclude": [1]}]]),
        ({"allOf": [{"type": "null"}, {"enum": [1]}]}, [[{"type": KINDS - {"null"}}], [{"exclude": [1]}]]),
        ({"not": {"type": "null"}}, [[kind("null")]]),
    ],
)
def test_not_becomes_the_contrary_of_each_keyword(schema: Any, contrary: list[Any]) -> None:
    assert split({"not": schema}) == contrary


def test_a_property_that_must_not_be_so_must_be_there() -> None:
    [[fact]] = split({"not": {"properties": {"a": {"type": "null"}}}})
    assert fact["required"] == ["a"]
    assert fact["properties"]["a"].words["not"].words == kind("null")


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"not": {"items": {}}}, r"\$\.not uses items in what must not hold"),
        ({"$ref": "#"}, "Circular"),
        ({"anyOf": [{"anyOf": [{"$ref": "#/anyOf/0"}]}]}, "Circular"),
        ({"allOf": [{"anyOf": [{"minItems": i} for i in range(2)]} for _ in range(9)]}, f"more than {MAX_CASES} cases"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused(schema: Any, problem: str) -> None:
    with pytest.raises(GrammarError, match=problem):
        split(schema)
