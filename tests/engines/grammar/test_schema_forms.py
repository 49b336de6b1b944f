"""The values that schemas allow together: constants, and the others kind by kind."""

from __future__ import annotations

from typing import Any

import pytest

from engines.grammar.automata import And, Atom, Not, matches
from engines.grammar.errors import GrammarError
from engines.grammar.schema_cases import Node
from engines.grammar.schema_forms import FREE_INTEGER, FREE_NUMBER, Form, Forms, ObjectForm
from engines.grammar.schema_reading import Document
from engines.grammar.strings import ANY_STRING, string_language


def form(schema: Any) -> Form:
    document = Document(schema)
    return Forms(document).of((Node(document.schema),))


def only_object(schema: Any) -> ObjectForm:
    found = form({"type": "object", **schema})
    assert (found.constants, found.numbers, found.strings, found.arrays) == ([], [], [], [])
    [one] = found.objects
    return one


def declared(one: ObjectForm) -> list[tuple[str, bool]]:
    return [(name, required) for name, _, required in one.declared]


def free_names(one: ObjectForm, *names: str) -> list[str]:
    return [name for name in names if any(matches(expr, string_language, name) for expr, _ in one.others)]


def test_anything_has_values_of_every_kind() -> None:
    found = form({})
    assert found.constants == [None, True, False]
    assert (found.numbers, found.strings) == ([FREE_NUMBER], [ANY_STRING])
    assert [(each.prefix, each.tail, each.least, each.most) for each in found.arrays] == [([], (), 0, None)]
    assert [declared(each) for each in found.objects] == [[]]


def test_a_keyword_of_one_kind_means_values_of_that_kind() -> None:
    assert form({"minimum": 2}) == form({"type": "number", "minimum": 2})
    assert form({"maxLength": 2}).strings == [And((Atom("most", 2),))]
    assert form({"type": "integer"}).numbers == [FREE_INTEGER]
    assert form({"type": "null"}) == Form(constants=[None])


def test_an_enum_keeps_the_values_that_everything_else_allows() -> None:
    assert form({"enum": [1, 5, "a", None, [1], 1.5], "type": ["integer", "array"], "maximum": 3}).constants == [1, [1]]
    assert form({"enum": ["a", "abc", 1], "maxLength": 2}) == Form(constants=[1], strings=[Atom("in", ("a",))])
    assert form({"enum": [1, 1.0, True]}).constants == [1, 1.0, True]
    assert form(
        {"enum": [{"a": 1}, {"a": "x"}, {}], "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    ) == Form(constants=[{"a": 1}])


def test_what_must_not_be_is_left_out() -> None:
    assert form({"type": ["boolean", "null"], "not": {"enum": [True]}}).constants == [None, False]
    assert form({"type": "string", "not": {"const": "a"}}).strings == [And((Not(Atom("in", ("a",))),))]
    [numbers] = form({"type": "number", "not": {"const": 2}}).numbers
    assert Not(Atom("equal", 2)) in numbers.parts  # type: ignore[union-attr]


def test_a_constant_that_must_not_be_true_is_not_one() -> None:
    """1 is 1.0 in JSON, but not true."""
    assert form({"enum": [1, True], "not": {"const": 1.0}}).constants == [True]


def test_arrays_are_bounded_by_the_tightest() -> None:
    schema = {"type": "array", "allOf": [{"minItems": 1, "maxItems": 5}, {"minItems": 2}, {"maxItems": 4}]}
    [array] = form(schema).arrays
    assert (array.least, array.most) == (2, 4)
    assert form({"type": "array", "minItems": 3, "maxItems": 2}).arrays == []


def test_an_item_meets_the_prefix_of_one_schema_and_the_items_of_another() -> None:
    schema = {
        "type": "array",
        "prefixItems": [{"type": "null"}],
        "items": {"type": "integer"},
        "allOf": [{"items": {}}],
    }
    [array] = form(schema).arrays
    assert [[node.schema.path for node in item] for item in array.prefix] == [["$.prefixItems[0]", "$.allOf[0].items"]]
    assert [node.schema.path for node in array.tail] == ["$.items", "$.allOf[0].items"]


def test_declared_properties_close_an_object_unless_others_are_spoken_of() -> None:
    closed = only_object({"properties": {"a": {}, "b": {}}, "required": ["b"]})
    assert (declared(closed), closed.others) == ([("a", False), ("b", True)], [])
    opened = only_object({"properties": {"a": {}}, "additionalProperties": {"type": "null"}})
    assert free_names(opened, "a", "b") == ["b"]
    assert only_object({"properties": {"a": {}}, "additionalProperties": False}).others == []


def test_names_that_match_patterns_meet_the_schemas_of_each() -> None:
    one = only_object({"patternProperties": {"^a": {"type": "null"}, "b$": {"type": "string"}}})
    met = {
        name: sorted(
            node.schema.path for expr, nodes in one.others if matches(expr, string_language, name) for node in nodes
        )
        for name in ("a", "b", "ab", "c")
    }
    first, second = "$.patternProperties.^a", "$.patternProperties.b$"
    assert met == {"a": [first], "b": [second], "ab": [first, second], "c": []}


def test_names_of_properties_restrict_declared_and_others() -> None:
    one = only_object(
        {"properties": {"ab": {}, "abc": {}}, "additionalProperties": True, "propertyNames": {"maxLength": 2}}
    )
    assert declared(one) == [("ab", False)]
    assert free_names(one, "x", "xy", "xyz") == ["x", "xy"]


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": False}, "required": ["a"]},
        {"propertyNames": {"maxLength": 1}, "required": ["ab"]},
        {"required": ["a", "b"], "maxProperties": 1},
        {"properties": {"a": {}}, "minProperties": 2},
        {"required": ["a"], "not": {"required": ["a"]}},
    ],
)
def test_an_object_that_cannot_be_has_no_form(schema: Any) -> None:
    assert form({"type": "object", **schema}).objects == []


def test_possible_finds_a_value_or_its_absence() -> None:
    def possible(schema: Any) -> bool:
        document = Document(schema)
        return Forms(document).possible((Node(document.schema),))

    assert possible({"type": "integer", "minimum": 2, "maximum": 2})
    assert not possible({"type": "integer", "minimum": 3, "maximum": 2})
    assert not possible({"type": "string", "pattern": "^a", "not": {"pattern": "a"}})
    assert not possible(
        {"type": "array", "items": {"enum": [1], "type": "string"}, "prefixItems": [False], "minItems": 1}
    )
    assert possible({"type": "array", "prefixItems": [False]})
    assert not possible({"type": "object", "properties": {"a": {"enum": [1], "maximum": 0}}, "required": ["a"]})


def test_what_cannot_be_told_apart_is_refused() -> None:
    with pytest.raises(GrammarError, match=r"\$ excludes an array"):
        form({"type": ["array", "null"], "not": {"const": [1]}})
    with pytest.raises(GrammarError, match="more than 4 patternProperties"):
        form({"type": "object", "patternProperties": {f"^{letter}": {} for letter in "abcde"}})
