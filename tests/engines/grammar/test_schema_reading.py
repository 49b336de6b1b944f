"""Schemas read: keywords become words of a schema, references are followed, and what is wrong is named by its path."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from engines.grammar.automata import Atom
from engines.grammar.errors import GrammarError
from engines.grammar.schema_reading import NUMBERS, Document, Schema, kind_of


def words(schema: Any) -> dict[str, Any]:
    return Document(schema).schema.words


def test_types_become_kinds_of_values() -> None:
    assert words({"type": "number"}) == {"type": NUMBERS}
    assert words({"type": ["integer", "null"]}) == {"type": frozenset({"integer", "null"})}
    values = [None, True, 1, 1.0, 1.5, "1", [1], {"a": 1}]
    kinds = ["null", "boolean", "integer", "integer", "fraction", "string", "array", "object"]
    assert [kind_of(value) for value in values] == kinds


def test_keywords_of_numbers_and_strings_become_languages() -> None:
    given = {"minimum": 0.1, "exclusiveMaximum": 3, "multipleOf": 0.5, "minLength": 2.0, "format": "date"}
    assert words(given) == {
        "minimum": Atom("at_least", Fraction(1, 10)),
        "exclusiveMaximum": Atom("below", Fraction(3)),
        "multipleOf": Atom("multiple", Fraction(1, 2)),
        "minLength": Atom("least", 2),
        "format": Atom("format", "date"),
    }


def test_what_says_nothing_about_values_is_left_out() -> None:
    assert words({"title": "T", "description": "D", "default": 1, "format": "colour", "then": {}, "x": 1}) == {}


def test_a_constant_is_an_enum_of_one_value() -> None:
    assert words({"const": None, "enum": [1, 2]}) == {"const": [None], "enum": [1, 2]}


@pytest.mark.parametrize(
    ("reference", "path"),
    [("#/$defs/a~1b~0", "$defs"), ("#/$defs/a%20b", "$defs"), ("#/anyOf/1", "anyOf"), ("#", "root")],
)
def test_references_lead_into_the_document(reference: str, path: str) -> None:
    inner = {"type": "null"}
    root: dict[str, Any] = {"$defs": {"a/b~": inner, "a b": inner}, "anyOf": [{}, inner], "not": {"$ref": reference}}
    document = Document(root)
    target = document.target(reference, "$")
    assert target is (document.schema if path == "root" else document.target("#/anyOf/1", "$"))
    assert document.schema.words["not"].words == {"$ref": reference}


def test_dependencies_of_draft_7_are_split_by_what_they_hold() -> None:
    found = words({"dependencies": {"a": ["b", "c", "b"], "d": {"required": ["e"]}}})
    assert found["dependentRequired"] == {"a": ["b", "c"]}
    assert found["dependentSchemas"]["d"].words == {"required": ["e"]}


def test_a_list_of_items_is_the_prefix_and_additional_items_the_rest() -> None:
    old = words({"items": [{"type": "null"}], "additionalItems": False})
    new = words({"prefixItems": [{"type": "null"}], "items": False})
    for found in (old, new):
        [first] = found["prefixItems"]
        assert first.words == {"type": frozenset({"null"})}
        assert found["items"].always is False
    assert words({"items": []}) == {"prefixItems": []}
    assert isinstance(words({"items": {"type": "null"}})["items"], Schema)


@pytest.mark.parametrize(
    ("schema", "place", "problem"),
    [
        ({"properties": {"a": {"items": {"type": "x"}}}}, "properties.a.items.type", "must be one or more of array,"),
        ({"anyOf": [{}, 5]}, "anyOf[1]", "must be an object or a boolean"),
        ({"anyOf": []}, "anyOf", "must be a list of schemas"),
        ({"$defs": {"a": {"minItems": -1}}, "$ref": "#/$defs/a"}, "#/$defs/a.minItems", "must be a whole number"),
        ({"maxItems": 1.5}, "maxItems", "must be a whole number"),
        ({"maxItems": True}, "maxItems", "must be a whole number"),
        ({"required": "a"}, "required", "must be a list of names"),
        ({"dependentRequired": {"a": [1]}}, "dependentRequired.a", "must be a list of names"),
        ({"properties": []}, "properties", "must be an object"),
        ({"patternProperties": {"(": {}}}, "patternProperties", "unclosed group"),
        ({"items": [{}], "prefixItems": [{}]}, "", "has a list in items beside prefixItems"),
        ({"$ref": "#/$defs/a/0"}, "$ref", "which does not exist"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(schema: Any, place: str, problem: str) -> None:
    with pytest.raises(GrammarError) as raised:
        Document(schema)
    assert problem in raised.value.message
    field = f"grammar.value.{place}" if place and not place.startswith("#") else f"grammar.value{place}"
    assert raised.value.field == field


def test_unique_items_are_allowed_where_there_can_be_no_two() -> None:
    assert words({"uniqueItems": True, "maxItems": 1}) == {"maxItems": 1}
    with pytest.raises(GrammarError, match="uniqueItems"):
        Document({"uniqueItems": True, "maxItems": 2})
