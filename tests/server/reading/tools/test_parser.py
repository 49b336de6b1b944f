from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.reading.events import CallArguments, CallStart, Content
from server.reading.tools.formats import FORMATS, CallFormat, choose
from server.reading.tools.parser import Event, Parsed, ToolParser, collect, parse

NAMES: dict[str, Any] = {"add": {}, "weather": {}, "noop": {}}

# format, text, content, calls
CASES: list[tuple[str, str, str | None, list[tuple[str, str]]]] = [
    ("hermes", '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', None, [("add", '{"a": 1}')]),
    (
        "hermes",
        'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": "}\\"{"}}\n</tool_call>\n'
        '<tool_call>{"arguments": {"b": [1, {"c": null}]}, "name": "weather"}</tool_call>\nDone. ',
        "Let me see.\nDone. ",
        [("add", '{"a": "}\\"{"}'), ("weather", '{"b": [1, {"c": null}]}')],
    ),
    ("hermes", '<tool_call>{"name": "noop"}</tool_call>', None, [("noop", "{}")]),
    ("hermes", '<tool_call>{"name": "noop", "arguments": null}</tool_call>', None, [("noop", "{}")]),
    ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', None, [("add", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name":"add","arguments":{"a":1}', None, [("add", '{"a":1}')]),
    ("hermes", '<tool_call>{"name":"add","arguments":{"a":', None, [("add", '{"a":')]),
    ("hermes", '<tool_call>{"name":"add","arguments":{"a":1}</tool_call> so', " so", [("add", '{"a":1}')]),
    ("hermes", '<tool_call>{"name":"add","arguments":{"a":oops}}</tool_call>', None, [("add", '{"a":oops}')]),
    ("hermes", '<tool_call>{"name":"add","arguments":{}} and more', " and more", [("add", "{}")]),
    ("hermes", '<tool_call>{"name":"unknown","arguments":{}}</tool_call>', "same", []),
    ("hermes", '<tool_call>{"name":"add","arguments":3}</tool_call>', "same", []),
    ("hermes", "<tool_call>add(1)</tool_call>", "same", []),
    ("hermes", '<tool_call>{"name":"add"', "same", []),
    ("hermes", "  a < b <tool> <tool_call", "same", []),
    ("hermes", '{"name": "add", "arguments": {}}', "same", []),
    ("hermes", " \n", "same", []),
    ("hermes", '<tool_call>x<tool_call>{"name":"add","arguments":{}}</tool_call>', "<tool_call>x", [("add", "{}")]),
    ("llama3_json", '{"name": "add", "parameters": {"a": 1}}', None, [("add", '{"a": 1}')]),
    ("llama3_json", '\n{"type": "function", "name": "add", "parameters": {}}', None, [("add", "{}")]),
    ("llama3_json", '<|python_tag|>{"name": "add", "parameters": {"a": 1}}', None, [("add", '{"a": 1}')]),
    (
        "llama3_json",
        '{"name": "add", "parameters": {"a": 1}}; {"name": "noop", "parameters": {}}\n{"name":"add","arguments":{}}',
        None,
        [("add", '{"a": 1}'), ("noop", "{}"), ("add", "{}")],
    ),
    ("llama3_json", '{"city": "Oslo", "parameters": {}}', "same", []),
    ("llama3_json", '{"name": "Bob", "parameters": {}}', "same", []),
    ("llama3_json", "<|python_tag|>print(1)", "same", []),
    ("llama3_json", 'Use {"name": "add", "parameters": {}}', "same", []),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}, {"name": "noop", "arguments": {}, "id": "abcdefghi"}]',
        None,
        [("add", '{"a": 1}'), ("noop", "{}")],
    ),
    ("mistral", 'Yes. [TOOL_CALLS] [{"name": "add", "arguments": {"a": [1]}}] ok', "Yes. ok", [("add", '{"a": [1]}')]),
    # Half a surrogate pair stays the escape that it is, wherever the arguments stand; so do large integers.
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {"a": "\\ud800"}}</tool_call>',
        None,
        [("add", '{"a": "\\ud800"}')],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"a": "\\ud800", "b": 123456789012345678901}, "name": "add"}</tool_call>',
        None,
        [("add", '{"a": "\\ud800", "b": 123456789012345678901}')],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": "{\\"a\\": \\"\\ud800\\"}", "name": "add"}</tool_call>',
        None,
        [("add", '{"a": "\\ud800"}')],
    ),
    ("mistral", "[TOOL_CALLS]add", "same", []),
    ("mistral", "[TOOL_CALLS][1]", "same", []),
    ("mistral", '[TOOL_CALLS][{"name": "add", "arguments": {}}, {"x": 1}]', ', {"x": 1}]', [("add", "{}")]),
]


def _numbered() -> Callable[[CallFormat], str]:
    count = iter(range(1000))
    return lambda form: f"id{next(count)}"


def _streamed(form: CallFormat, pieces: list[str]) -> Parsed:
    parser = ToolParser(form, NAMES, _numbered())
    events: list[Event] = []
    for piece in pieces:
        events += parser.feed(piece)
    return collect([*events, *parser.finish()])


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_the_same_result_whole_and_cut_at_every_point(
    name: str, text: str, content: str | None, calls: list[tuple[str, str]]
) -> None:
    form = FORMATS[name]
    whole = parse(form, NAMES, text, _numbered())
    assert whole.content == (text if content == "same" else content)
    assert [(call.name, call.arguments) for call in whole.calls] == calls
    assert [call.id for call in whole.calls] == [f"id{index}" for index in range(len(calls))]
    assert _streamed(form, list(text)) == whole
    for first in range(len(text) + 1):
        assert _streamed(form, [text[:first], text[first:]]) == whole


_FRAGMENTS = [
    *{mark for form in FORMATS.values() for mark in form.marks if mark not in form.hidden}, "call:", "functions.",
    "<function=", ">", "</function>", "<parameter=", "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>", "add",
    "</arg_value>", "function<｜tool▁sep｜>", "```json", "Action: ```json",
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "[", "]", "{", "}", '"', ":", ",", ";", " ", "\n",
    '"name"', '"add"', '"arguments"', '"parameters"', "\\", "x", "1", "null", "<", '{"name": "add", "arguments": {',
]  # fmt: skip


@given(
    form=st.sampled_from([form for form in FORMATS.values() if form.style != "channels"]),
    pieces=st.lists(st.sampled_from(_FRAGMENTS), max_size=30),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_any_text_streams_as_it_parses(form: CallFormat, pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    whole = parse(form, NAMES, text, _numbered())
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    assert _streamed(form, [text[a:b] for a, b in pairwise(places)]) == whole
    if not whole.calls:
        assert (whole.content or "") == text
    for call in whole.calls:
        assert call.arguments.startswith("{")


def test_arguments_are_streamed_before_the_call_is_complete() -> None:
    parser = ToolParser(FORMATS["hermes"], NAMES, _numbered())
    assert parser.feed('<tool_call>{"name": "add", "argum') == []
    assert parser.feed('ents": {"a"') == [CallStart(0, "id0", "add"), CallArguments(0, '{"a"')]
    assert parser.feed(": 12") == [CallArguments(0, ": 12")]
    assert parser.feed("3}}</tool") == [CallArguments(0, "3}")]
    assert parser.feed("_call>\n") == []
    assert parser.feed("So") == [Content("\nSo")]


def test_a_json_answer_is_not_held_back_for_long() -> None:
    parser = ToolParser(FORMATS["llama3_json"], NAMES)
    assert parser.feed('{"city"') == [Content('{"city"')]


def test_ids_are_as_long_as_templates_want_them() -> None:
    text = '[TOOL_CALLS][{"name": "add", "arguments": {}}, {"name": "add", "arguments": {}}]'
    first, second = (call.id for call in parse(FORMATS["mistral"], NAMES, text).calls)
    assert len(first) == 9
    assert first.isalnum()
    assert first != second
    hermes = parse(FORMATS["hermes"], NAMES, '<tool_call>{"name": "add"}</tool_call>').calls[0].id
    assert hermes.startswith("call_")


def test_long_and_deep_text_costs_linear_time() -> None:
    deep = '<tool_call>{"arguments": ' + "[" * 200_000
    assert parse(FORMATS["hermes"], NAMES, deep).content == deep
    closed = '<tool_call>{"arguments": ' + "[" * 50_000 + "]" * 50_000 + "}"
    assert parse(FORMATS["hermes"], NAMES, closed).content == closed


@pytest.mark.parametrize(
    ("template", "model", "setting", "expected"),
    [
        ("… <tool_call> …", "", "auto", "hermes"),
        ("{{ '[TOOL_CALLS]' }}", "", "auto", "mistral"),
        ("<|python_tag|> ipython tools", "", "auto", "llama3_json"),
        ("plain", "Qwen/Qwen2.5-7B-Instruct", "auto", "hermes"),
        ("plain", "meta-llama/Llama-3.2-1B-Instruct", "auto", "llama3_json"),
        ("plain", "facebook/opt-1.3b", "auto", "json"),
        ("… <tool_call> …", "", "none", None),
        ("… <tool_call> …", "", "mistral", "mistral"),
    ],
)
def test_the_format_is_chosen_by_template_then_name(
    template: str, model: str, setting: str, expected: str | None
) -> None:
    form = choose(template, model, setting)
    assert (form.name if form else None) == expected


def test_an_unknown_setting_names_what_there_is() -> None:
    with pytest.raises(ValueError, match="hermes"):
        choose("", "", "other")


def test_arguments_pass_through_as_written() -> None:
    arguments = '{ "é" : "\\u00e9",\n"n":1.50 }'
    text = '<tool_call>{"name": "add", "arguments": ' + arguments + "}</tool_call>"
    assert parse(FORMATS["hermes"], NAMES, text).calls[0].arguments == arguments
    assert json.loads(arguments)
