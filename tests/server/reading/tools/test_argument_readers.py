"""Calls whose arguments are not JSON, made into JSON as their characters arrive."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from server.reading.tools.argument_readers import BracesReader, PairsReader, ParametersReader, kinds
from server.reading.tools.call_reader import CallReader, Verdict

FUNCTIONS: dict[str, Any] = {
    "add": {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "x": {"type": "number"},
            "s": {"type": "string"},
            "b": {"type": "boolean"},
            "l": {"type": "array"},
            "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        },
    }
}
QUOTE = '<|"|>'
Made = Callable[[], CallReader]


def parameters() -> CallReader:
    return ParametersReader(FUNCTIONS)


def pairs() -> CallReader:
    return PairsReader(FUNCTIONS)


def braces() -> CallReader:
    return BracesReader(FUNCTIONS, QUOTE)


def read(reader: CallReader, text: str) -> tuple[Verdict, str]:
    """The last verdict, and the fragments joined."""
    fragments = ""
    for character in text:
        verdict = reader.feed(character)
        fragments += reader.take_fragment()
        if verdict != "more":
            return verdict, fragments
    return "more", fragments


def parameter(key: str, value: str) -> str:
    return f"<function=add>\n<parameter={key}>\n{value}\n</parameter>\n</function>"


def pair(key: str, value: str) -> str:
    return f"add\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"


@pytest.mark.parametrize(("made", "written"), [(parameters, parameter), (pairs, pair)])
@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("n", "12", 12),
        ("x", "3", 3),
        ("s", "12", "12"),
        ("s", 'say "hi"\n\\ </param', 'say "hi"\n\\ </param'),
        ("s", "", ""),
        ("b", "True", True),
        ("l", '[1, "a"]', [1, "a"]),
        ("n", "twelve", "twelve"),  # the tool may say what is wrong with it
        ("either", "12", 12),
        ("either", "12.5", "12.5"),
        ("undeclared", "None", None),
        ("undeclared", "text", "text"),
    ],
)
def test_a_value_is_of_the_kind_its_schema_names(
    made: Made, written: Callable[[str, str], str], key: str, value: str, meant: Any
) -> None:
    reader = made()
    verdict, fragments = read(reader, written(key, value))
    assert (verdict, reader.name) == ("call", "add")
    assert json.loads(fragments) == {key: meant}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("call:add{}", {}),
        ("call:add{n:12,x:-1.5e3}", {"n": 12, "x": -1500.0}),
        (f'call:add{{s:{QUOTE}a "b", {{c}}{QUOTE}}}', {"s": 'a "b", {c}'}),
        ('call:add{"s":"a:b"}', {"s": "a:b"}),
        (f"call:add{{l:[1,{QUOTE}x{QUOTE},[true,null]],b:false}}", {"l": [1, "x", [True, None]], "b": False}),
        ("call:add{o:{n:1,p:{}}}", {"o": {"n": 1, "p": {}}}),
        ("call:add{s:words}", {"s": "words"}),
    ],
)
def test_braces_become_json(text: str, meant: Any) -> None:
    reader = braces()
    verdict, fragments = read(reader, text)
    assert (verdict, reader.name) == ("call", "add")
    assert json.loads(fragments) == meant


def test_several_values_are_one_object() -> None:
    text = "<function=add><parameter=n>\n1\n</parameter><parameter=s>\nx\ny\n</parameter></function>"
    assert json.loads(read(parameters(), text)[1]) == {"n": 1, "s": "x\ny"}
    text = "add<arg_key>n</arg_key><arg_value>1</arg_value><arg_key>s</arg_key><arg_value>\nx</arg_value></tool_call>"
    assert json.loads(read(pairs(), text)[1]) == {"n": 1, "s": "\nx"}


def test_text_is_written_while_it_is_read_and_other_values_at_their_end() -> None:
    reader = parameters()
    assert read(reader, "<function=add><parameter=s>\nhel") == ("more", '{"s": "hel')
    reader = parameters()
    assert read(reader, "<function=add><parameter=n>\n12") == ("more", '{"n": ')
    reader.cut()
    assert reader.take_fragment() == "12", "at the end of the text what was held back is shown"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (parameters, "<function=other>"),
        (parameters, "<functions"),
        (pairs, "other\n"),
        (braces, "call:other{"),
        (braces, "calls"),
    ],
)
def test_what_names_no_function_is_no_call(made: Made, text: str) -> None:
    reader = made()
    assert read(reader, text) == ("broken", "")
    assert reader.name is None
    assert text.endswith(reader.unread)


def test_a_call_that_goes_astray_ends_there_with_its_arguments_closed() -> None:
    reader = parameters()
    verdict, fragments = read(reader, "<function=add><parameter=n>\n1\n</parameter>\nSo ")
    assert (verdict, reader.name, reader.unread) == ("broken", "add", "S")
    assert json.loads(fragments) == {"n": 1}


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": [1, "a", None]}, {"integer", "string", "null"}),
        ({"const": True}, {"boolean"}),
        ({"$ref": "#/$defs/a~1b"}, {"integer"}),
        ({"$ref": "#/$defs/none"}, set()),
        ({"$ref": "#/$defs/loop"}, set()),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, {"string", "integer"}),
        ({"anyOf": [{"type": "string"}, {}]}, set()),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": "integer"}, {}]}, {"integer"}),
        ({}, set()),
        (True, set()),
    ],
)
def test_the_kinds_that_a_schema_names(schema: Any, found: set[str]) -> None:
    document = {"$defs": {"a/b": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert kinds(schema, document) == found
