"""What a request demands of the text's form: one grammar of whatever fields ask for it, or a refusal by name."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from api_doubles import served_model

from protocol.messages import Grammar, GrammarType
from server.backend import GrammarFault
from server.errors import InvalidRequest, NotSupported
from server.gateway import Gateway
from server.openai.constraints import Constraint, check, constraint
from server.openai.options import ResponseFormat, StructuredOutputs

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
KINDS: list[GrammarType] = ["json_object", "json_schema", "regex", "choice", "grammar"]


def demanded(
    format: dict[str, Any] | None = None, structured: dict[str, Any] | None = None, kinds: list[GrammarType] = KINDS
) -> Constraint | None:
    return constraint(
        None if format is None else ResponseFormat.model_validate(format),
        None if structured is None else StructuredOutputs.model_validate(structured),
        7,
        served_model(grammar_types=kinds).target,
    )


@pytest.mark.parametrize(
    ("format", "field"),
    [
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}, "json_schema.schema"),
        (
            {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": None}, "schema": None},
            "json_schema.schema",
        ),
        ({"type": "json_schema", "schema": SCHEMA}, "schema"),
        ({"type": "json_object", "schema": SCHEMA}, "schema"),
        ({"type": "json_object", "schema": SCHEMA, "json_schema": None}, "schema"),
    ],
)
def test_a_schema_may_stand_in_several_places(format: Any, field: str) -> None:
    found = demanded(format)
    assert found is not None
    assert (found.grammar.type, json.loads(found.grammar.value), found.grammar.start) == ("json_schema", SCHEMA, 7)
    assert (found.param, found.schema) == ("response_format", f"response_format.{field}")


@pytest.mark.parametrize(
    ("format", "param"),
    [
        ({"type": "json_object", "json_schema": {"schema": SCHEMA}}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA}, "schema": {}}, "response_format.json_schema"),
        ({"type": "text", "schema": SCHEMA}, "response_format.schema"),
        ({"type": "text", "json_schema": {"schema": SCHEMA}}, "response_format.json_schema"),
        ({"type": "json_schema"}, "response_format.json_schema"),
    ],
)
def test_a_schema_is_never_dropped(format: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        demanded(format)
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("structured", "kind", "value"),
    [
        ({"json": SCHEMA}, "json_schema", json.dumps(SCHEMA, separators=(",", ":"))),
        ({"json": '{"type":  "null"}'}, "json_schema", '{"type":  "null"}'),
        ({"regex": "a+"}, "regex", "a+"),
        ({"choice": ["x", "y"]}, "choice", '["x","y"]'),
        ({"grammar": "root ::= x"}, "grammar", "root ::= x"),
        ({"json_object": True}, "json_object", ""),
    ],
)
def test_each_kind_of_structured_output_is_a_grammar(structured: dict[str, Any], kind: GrammarType, value: str) -> None:
    found = demanded(structured=structured)
    assert found is not None
    assert (found.grammar.type, found.grammar.value) == (kind, value)
    assert found.param == f"structured_outputs.{next(iter(structured))}"
    assert found.schema == (found.param if kind == "json_schema" else "")


def test_nothing_is_demanded_of_free_text() -> None:
    assert demanded() is None
    assert demanded({"type": "text"}) is None


@pytest.mark.parametrize(
    ("format", "structured", "param"),
    [
        ({"type": "json_object"}, {"regex": "a"}, "structured_outputs.regex"),
        (None, {"regex": "a", "choice": ["b"]}, "structured_outputs.choice"),
        (None, {}, "structured_outputs"),
        (None, {"json_object": False}, "structured_outputs"),
        (None, {"json": "{"}, "structured_outputs.json"),
    ],
)
def test_demands_that_contradict_each_other_are_named(format: Any, structured: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        demanded(format, structured)
    assert raised.value.param == param


def test_what_the_target_cannot_enforce_is_not_asked_of_it() -> None:
    assert demanded({"type": "json_object"}, kinds=["json_object"]) is not None
    with pytest.raises(NotSupported) as raised:
        demanded({"type": "json_object"}, kinds=["regex"])
    assert raised.value.param == "response_format"


def gateway(faults: dict[str, GrammarFault], checked: list[str]) -> Gateway:
    """A gateway whose target finds these faults, by the grammar's value."""

    async def grammar_fault(grammar: Grammar) -> GrammarFault | None:
        checked.append(grammar.value)
        return faults.get(grammar.value)

    return cast(Gateway, SimpleNamespace(backend=SimpleNamespace(grammar_fault=grammar_fault)))


def regex(value: str) -> Grammar:
    return Grammar(type="regex", value=value, start=0)


def test_the_target_is_asked_before_anything_is_generated() -> None:
    checked: list[str] = []
    asked = Constraint(regex("a"), "tools")
    assert asyncio.run(check(gateway({}, checked), asked)) is asked
    assert asyncio.run(check(gateway({}, checked), None)) is None
    assert checked == ["a"]


def test_a_lesser_grammar_takes_the_place_of_one_that_was_not_asked_for() -> None:
    checked: list[str] = []
    faults = {"a": GrammarFault("too long"), "b": GrammarFault("also too long")}
    found = asyncio.run(check(gateway(faults, checked), Constraint(regex("a"), "tools", otherwise=regex("c"))))
    assert found is not None
    assert (found.grammar.value, found.param) == ("c", "tools")
    with pytest.raises(InvalidRequest, match="also too long"):
        asyncio.run(check(gateway(faults, checked), Constraint(regex("a"), "tools", otherwise=regex("b"))))
    assert checked == ["a", "c", "a", "b"]


@pytest.mark.parametrize(
    ("schema", "place", "param"),
    [
        ("response_format.schema", "properties.x", "response_format.schema.properties.x"),
        ("response_format.schema", "", "response_format"),
        ("", "properties.x", "response_format"),
    ],
)
def test_a_fault_is_named_by_its_place_in_the_schema_that_was_sent(schema: str, place: str, param: str) -> None:
    faults = {"a": GrammarFault("uses not", place)}
    with pytest.raises(InvalidRequest) as raised:
        asyncio.run(check(gateway(faults, []), Constraint(regex("a"), "response_format", schema=schema)))
    assert (raised.value.param, raised.value.code) == (param, "invalid_grammar")
    assert "uses not" in raised.value.message
