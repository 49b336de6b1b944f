"""What models of each family write, in shapes of their own, read whole and cut at every place."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from server.reading.events import CallArguments
from server.reading.tools.formats import FORMATS, CallFormat, choose
from server.reading.tools.parser import Event, Parsed, ToolParser, collect, parse

FUNCTIONS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "detail": {"$ref": "#/$defs/detail"},
            "wind": {"type": ["boolean", "null"]},
            "at": {"anyOf": [{"type": "number"}, {"type": "string"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {"type": ["string", "null"]},
        },
        "$defs": {"detail": {"enum": ["much", "1"]}},
    },
    "noop": {"type": "object", "properties": {}},
}
OSLO = {"city": 'Oslo "Ø"\n2', "days": 3}

V3 = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"
V3_CALL = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
V31_CALL = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
KIMI = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"
KIMI_CALL = "<|tool_call_begin|>functions.{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
QWEN = "<tool_call>\n<function={}>\n{}</function>\n</tool_call>"
QWEN_ARGUMENT = "<parameter={}>\n{}\n</parameter>\n"
GLM_ARGUMENT = "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"

# format, text, content ("same": all of it), calls
CASES: list[tuple[str, str, str | None, list[tuple[str, Any]]]] = [
    ("deepseek_v3", V3.format(V3_CALL.format("weather", json.dumps(OSLO))), None, [("weather", OSLO)]),
    (
        "deepseek_v3",
        "Let me look.\n\n"
        + V3.format(V3_CALL.format("weather", '{"city": "```}"}') + "\n" + V3_CALL.format("noop", "{}")),
        "Let me look.",
        [("weather", {"city": "```}"}), ("noop", {})],
    ),
    ("deepseek_v3", V3_CALL.format("noop", "{}"), None, [("noop", {})]),
    ("deepseek_v3", V3.format(V3_CALL.format("unknown", "{}")), "same", []),
    ("deepseek_v3", V3.format("nothing"), "same", []),
    ("deepseek_v3", "a <｜tool▁calls▁end｜> b", "same", []),
    (
        "deepseek_v3",
        V3.format(V3_CALL.format("noop", "{}") + V3_CALL.format("unknown", "{}")),
        V3_CALL.format("unknown", "{}") + "<｜tool▁calls▁end｜>",
        [("noop", {})],
    ),
    (
        "deepseek_v31",
        V3.format(V31_CALL.format("weather", json.dumps(OSLO)) + V31_CALL.format("noop", "{}")),
        None,
        [("weather", OSLO), ("noop", {})],
    ),
    ("deepseek_v31", V3.format(V31_CALL.format("weather", "[1]")), "same", []),
    (
        "kimi",
        "Wait. " + KIMI.format(KIMI_CALL.format("weather:0", json.dumps(OSLO)) + KIMI_CALL.format("noop:1", "{}")),
        "Wait.",
        [("weather", OSLO), ("noop", {})],
    ),
    ("kimi", KIMI.format(KIMI_CALL.format("unknown:0", "{}")), "same", []),
    ("mistral_v11", '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]noop[ARGS]{}', None,
     [("weather", {"city": "Oslo"}), ("noop", {})]),
    ("mistral_v11", "[TOOL_CALLS]unknown[ARGS]{}", "same", []),
    (
        "qwen3_coder",
        QWEN.format("weather", QWEN_ARGUMENT.format("city", OSLO["city"]) + QWEN_ARGUMENT.format("days", "3")),
        None,
        [("weather", OSLO)],
    ),
    (
        "qwen3_coder",
        "Now.\n" + QWEN.format("noop", "") + "\n" + QWEN.format("weather", QWEN_ARGUMENT.format("city", "</param>\n"))
        + "\nDone",
        "Now.\nDone",
        [("noop", {}), ("weather", {"city": "</param>\n"})],
    ),
    (
        "qwen3_coder",
        QWEN.format("weather", "".join(QWEN_ARGUMENT.format(*pair) for pair in (
            ("detail", "1"), ("wind", "None"), ("at", "2.5"), ("tags", '["a", "b"]'), ("days", "soon"), ("new", "7"),
        ))),
        None,
        [("weather", {"detail": "1", "wind": None, "at": 2.5, "tags": ["a", "b"], "days": "soon", "new": 7})],
    ),
    ("qwen3_coder", QWEN.format("weather", QWEN_ARGUMENT.format("note", "7")), None, [("weather", {"note": "7"})]),
    # Without </function>, as it comes at times.
    ("qwen3_coder", "<tool_call>\n<function=noop>\n</tool_call>", None, [("noop", {})]),
    ("qwen3_coder", QWEN.format("unknown", QWEN_ARGUMENT.format("a", "1")), "same", []),
    ("qwen3_coder", '<tool_call>{"name": "noop"}</tool_call>', "same", []),
    (
        "glm",
        "<tool_call>weather\n" + GLM_ARGUMENT.format("city", OSLO["city"]) + GLM_ARGUMENT.format("days", 3)
        + "</tool_call>\n<tool_call>noop</tool_call>",
        None,
        [("weather", OSLO), ("noop", {})],
    ),
    ("glm", "<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>!", "!",
     [("weather", {"city": "Oslo"})]),
    ("glm", "<tool_call>noop</tool_call></tool_call>", "</tool_call>", [("noop", {})]),
    ("glm", "<tool_call>unknown\n</tool_call>", "same", []),
    ("glm", "<tool_call>noop is not what I call</tool_call>", "same", []),
    (
        "gemma4",
        '<|tool_call>call:weather{city:<|"|>Oslo "Ø"\n2<|"|>,days:3}<tool_call|><|tool_call>call:noop{}<tool_call|>',
        None,
        [("weather", OSLO), ("noop", {})],
    ),
    (
        "gemma4",
        '<|tool_call>call:weather{tags:[<|"|>a, {b}<|"|>,<|"|><|<|"|>],wind:null,at:-1.5,o:{p:{q:true}}}<tool_call|>',
        None,
        [("weather", {"tags": ["a, {b}", "<|"], "wind": None, "at": -1.5, "o": {"p": {"q": True}}})],
    ),
    ("gemma4", "<|tool_call>call:unknown{}<tool_call|>", "same", []),
    ("gemma4", "<|tool_call>weather", "same", []),
    (
        "functiongemma",
        "<start_function_call>call:weather{city:<escape>Oslo<escape>,days:3}<end_function_call>",
        None,
        [("weather", {"city": "Oslo", "days": 3})],
    ),
    (
        "granite",
        f'<|tool_call|>[{{"name": "weather", "arguments": {json.dumps(OSLO)}}}, {{"name": "noop", "arguments": {{}}}}]',
        None,
        [("weather", OSLO), ("noop", {})],
    ),
    ("granite", '<tool_call>[{"arguments": {"days": 1}, "name": "weather"}]', None, [("weather", {"days": 1})]),
    ("granite", '<|tool_call|>[{"name": "unknown", "arguments": {}}]', "same", []),
    ("phi4_mini", '<|tool_call|>[{"name": "noop", "arguments": {}}]<|/tool_call|>', None, [("noop", {})]),
    ("phi4_mini", 'functools[{"name": "weather", "arguments": {"days": 2}}]', None, [("weather", {"days": 2})]),
    ("phi4_mini", "functools are tools", "same", []),
    (
        "command_a",
        "<|START_RESPONSE|>I look.<|END_RESPONSE|><|START_ACTION|>[\n    "
        '{"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Oslo"}},\n    '
        '{"tool_call_id": "1", "tool_name": "noop", "parameters": {}}\n]<|END_ACTION|>',
        "I look.",
        [("weather", {"city": "Oslo"}), ("noop", {})],
    ),
    ("command_a", '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "directly_answer"}]', "same", []),
    (
        "command_r",
        'Action: ```json\n[\n    {\n        "tool_name": "weather",\n        "parameters": {\n            "days": 1\n'
        "        }\n    }\n]```",
        None,
        [("weather", {"days": 1})],
    ),
    (
        "hermes",
        f'I look.\n<tool_call>\n{{"name": "weather", "arguments": {json.dumps(OSLO)}}}\n</tool_call>\n<tool_call>\n'
        '{"name": "noop", "arguments": {}}\n</tool_call>',
        "I look.",
        [("weather", OSLO), ("noop", {})],
    ),
    ("hermes", '<tool_call>{"name": "noop"}</tool_ca', None, [("noop", {})]),
    ("hermes", '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>', "same", []),
    (
        "llama3_json",
        f'{{"name": "weather", "parameters": {json.dumps(OSLO)}}}; {{"name": "noop", "parameters": {{}}}}',
        None,
        [("weather", OSLO), ("noop", {})],
    ),
    ("llama3_json", '<|python_tag|>{"name": "noop", "parameters": {}}', None, [("noop", {})]),
    ("llama3_json", '{"name": "unknown", "parameters": {}}', "same", []),
    (
        "mistral",
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {json.dumps(OSLO)}}}, {{"name": "noop", "arguments": {{}}}}]',
        None,
        [("weather", OSLO), ("noop", {})],
    ),
    ("mistral", '[TOOL_CALLS][{"name": "unknown", "arguments": {}}]', "same", []),
    ("mistral", '[TOOL_CALLS][{"name": "noop", "arguments": {}}], {"name": "noop", "arguments": {}}',
     ', {"name": "noop", "arguments": {}}', [("noop", {})]),
    ("mistral_v11", f"[TOOL_CALLS]weather[ARGS]{json.dumps(OSLO, ensure_ascii=False)}", None, [("weather", OSLO)]),
    ("functiongemma", "<start_function_call>call:unknown{}<end_function_call>", "same", []),
    ("phi4_mini", '<|tool_call|>[{"name": "unknown", "arguments": {}}]<|/tool_call|>', "same", []),
    ("command_r", 'Action: ```json\n[{"tool_name": "unknown", "parameters": {}}]\n```', "same", []),
    ("deepseek_v31", V3.format(V31_CALL.format("unknown", "{}")), "same", []),
    ("json", '{"name": "weather", "arguments": {"days": 1}}\n{"name": "noop", "arguments": {}}', None,
     [("weather", {"days": 1}), ("noop", {})]),
    ("json", 'Say {"name": "noop", "arguments": {}}', "same", []),
    ("json", '{"name": "unknown", "arguments": {}}', "same", []),
]  # fmt: skip


def test_every_format_has_shapes_of_its_own() -> None:
    """A call, and one of a function that there is not; harmony's are in tests/server/reading/test_harmony.py."""
    here = set(FORMATS) - {"harmony"}
    assert {case[0] for case in CASES if case[3]} == here
    assert {case[0] for case in CASES if not case[3] and ("unknown" in case[1] or "directly_" in case[1])} == here


def numbered() -> Callable[[CallFormat], str]:
    count = iter(range(1000))
    return lambda form: f"id{next(count)}"


def streamed(form: CallFormat, pieces: list[str], *, cut: bool = False) -> Parsed:
    parser = ToolParser(form, FUNCTIONS, numbered())
    events: list[Event] = []
    for piece in pieces:
        events += parser.feed(piece)
    return collect([*events, *parser.finish(cut=cut)])


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_each_shape_whole_and_cut_at_every_place(
    name: str, text: str, content: str | None, calls: list[tuple[str, Any]]
) -> None:
    form = FORMATS[name]
    whole = parse(form, FUNCTIONS, text, numbered())
    assert whole.content == (text if content == "same" else content)
    assert [(call.name, json.loads(call.arguments)) for call in whole.calls] == calls
    assert streamed(form, list(text)) == whole
    for first in range(len(text) + 1):
        assert streamed(form, [text[:first], text[first:]]) == whole


@pytest.mark.parametrize(("name", "text"), [case[:2] for case in CASES])
def test_each_shape_a_byte_at_a_time(byte_by_byte: Callable[[str], list[str]], name: str, text: str) -> None:
    assert streamed(FORMATS[name], byte_by_byte(text)) == parse(FORMATS[name], FUNCTIONS, text, numbered())


@pytest.mark.parametrize("name", sorted({case[0] for case in CASES}))
def test_a_text_that_is_cut_anywhere_ends_in_the_call_it_had_begun(name: str) -> None:
    """Its arguments are a beginning of the whole's, streamed or not."""
    form = FORMATS[name]
    text, calls = next((case[1], case[3]) for case in CASES if case[0] == name)
    full = parse(form, FUNCTIONS, text, numbered())
    begun = False
    for end in range(len(text)):
        part = parse(form, FUNCTIONS, text[:end], numbered(), cut=True)
        assert streamed(form, list(text[:end]), cut=True) == part
        if part.calls:
            begun = True
            read = (part.content or "").removeprefix(full.content or "")
            assert text[:end].endswith(read), "content that is new is the beginning of a call whose name is not known"
            assert read == "" or len(part.calls) < len(calls)
            for ours, theirs in zip(part.calls, full.calls, strict=False):
                assert ours.name == theirs.name
                assert theirs.arguments.startswith(ours.arguments)
        else:
            assert not begun, "a call that has begun stays one"
    assert begun or not calls


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("hermes", '<tool_call>\n{"name": "weather"', ""),
        ("hermes", '<tool_call>\n{"name": "weather", "argum', ""),
        ("hermes", '<tool_call>{"arguments": {"days": 1}, "name": "weather"', '{"days": 1}'),
        ("json", '{"name": "weather", ', ""),
        ("kimi", KIMI.format(KIMI_CALL.format("weather:0", "{}"))[:82], ""),
        ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=city>\nSan Fr", '{"city": "San Fr'),
        ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=days>\n1", '{"days": 1'),
        ("glm", "<tool_call>weather\n<arg_k", ""),
    ],
)
def test_a_call_that_was_cut_after_its_name_is_one(name: str, text: str, arguments: str) -> None:
    cut = parse(FORMATS[name], FUNCTIONS, text, numbered(), cut=True)
    assert [(call.name, call.arguments) for call in cut.calls] == [("weather", arguments)]
    assert cut.content is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "noop"}</tool_call>\n<tool_call>{"na'),
        ("llama3_json", '{"name": "noop", "parameters": {}}; {"name": "wea'),
        ("command_r", 'Action: ```json\n[{"tool_name": "noop", "parameters": {}}, {"tool_name": "'),
    ],
)
def test_a_further_call_that_was_cut_before_its_name_is_no_content(name: str, text: str) -> None:
    cut = parse(FORMATS[name], FUNCTIONS, text, numbered(), cut=True)
    assert (cut.content, [call.name for call in cut.calls]) == (None, ["noop"])
    assert streamed(FORMATS[name], list(text), cut=True) == cut


def test_a_name_that_was_cut_is_none() -> None:
    text = '<tool_call>\n{"name": "weather'
    assert parse(FORMATS["hermes"], FUNCTIONS, text, cut=True) == Parsed(text, [])


def test_kimi_gives_calls_their_ids() -> None:
    text = KIMI.format(KIMI_CALL.format("weather:4", "{}"))
    assert parse(FORMATS["kimi"], FUNCTIONS, text).calls[0].id == "functions.weather:4"


def test_strings_are_streamed_as_they_come() -> None:
    parser = ToolParser(FORMATS["qwen3_coder"], FUNCTIONS, numbered())
    parser.feed("<tool_call>\n<function=weather>\n<parameter=city>\n")
    assert parser.feed('a "') == [CallArguments(0, 'a \\"')]
    assert parser.feed("b\n") == [CallArguments(0, "b")]
    assert parser.feed("c") == [CallArguments(0, "\\nc")]


SIGNS = [
    ("{{ '<｜tool▁sep｜>' + name + '\\n' + '```json' }}", "deepseek_v3"),
    ("{{ '<｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments }}", "deepseek_v31"),
    ("<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>", "kimi"),
    ("<tool_call>{{ name }}<arg_key>", "glm"),
    ("<tool_call>\n<function=f>\n<parameter=p>\n", "qwen3_coder"),
    ("<|tool_call>call:{{ name }}", "gemma4"),
    ("<start_function_call>call:", "functiongemma"),
    ("<|START_ACTION|>[", "command_a"),
    ("<|CHATBOT_TOKEN|> Write 'Action:' followed by … \"tool_name\"", "command_r"),
    ("<|tool|>{{ message['tools'] }}<|/tool|>", "phi4_mini"),
    ("<|start_of_role|> … <|tool_call|>", "granite"),
    ("[TOOL_CALLS]{{ name }}[ARGS]", "mistral_v11"),
    ("[TOOL_CALLS][", "mistral"),
    ("<tool_call>{{ call | tojson }}</tool_call>", "hermes"),
    ("<start_of_turn>{{ role }}", "json"),
]


@pytest.mark.parametrize(("template", "name"), SIGNS)
def test_each_family_is_known_by_its_template(template: str, name: str) -> None:
    form = choose(template)
    assert form is not None
    assert form.name == name
