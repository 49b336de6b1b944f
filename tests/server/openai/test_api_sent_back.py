"""What clients send back reaches the template as what it means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from api_doubles import MODEL, Running, ScriptedBackend, Start, prompt_of
from test_api_tools import ADD, model

# The prompt is all that a template is given, as JSON. The mark tells how calls are written.
MIRROR = '{# <tool_call> #}{{ {"messages": messages, "tools": tools} | tojson }}'
ONE_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first!') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
DROPPING = (
    "{% if messages[0].role in ('system', 'developer') %}<first>{{ messages[0].content }}{% endif %}"
    "{% for m in messages if m.role == 'user' %}<user>{{ m.content }}{% endfor %}"
)
HI: dict[str, Any] = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def backend() -> ScriptedBackend:
    return ScriptedBackend(served=model(MIRROR, context_length=8192))


@pytest.fixture(scope="module")
def mirror(start_session: Start, backend: ScriptedBackend) -> Running:
    return start_session(backend)


def seen(running: Running, *messages: Any, **changes: Any) -> Any:
    """What the template was given for `messages`: the last of them, `HI` before."""
    response = running.chat(messages=[HI, *messages], **changes)
    assert response.status_code == 200, response.text
    return json.loads(prompt_of(running))["messages"][len(messages)]


def seen_items(running: Running, *items: Any, **changes: Any) -> list[Any]:
    response = running.post("/v1/responses", {"model": MODEL, "input": list(items), **changes})
    assert response.status_code == 200, response.text
    messages: list[Any] = json.loads(prompt_of(running))["messages"]
    return messages


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": arguments}, **more}


EXTRAS: dict[str, Any] = {
    "cache_control": {"type": "ephemeral"},
    "provider_specific_fields": None,
    "id": "msg_1",
    "created_at": 1700000000,
    "timestamp": "2026-01-01",
    "experimental_attachments": [],
    "deeply": {"nested": [{"of": "any"}, 1.5, 2**70]},
}


@pytest.mark.parametrize(
    ("message", "meant"),
    [
        ({**HI, **EXTRAS}, HI),
        ({"role": "user", "content": [{"type": "text", "text": "Hi", **EXTRAS}]}, HI),
        ({"role": "user", "content": ["Hi"]}, HI),
        ({"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}, HI),
        ({"role": "user", "content": ["Hi", {"text": "you"}]}, {**HI, "content": "Hi\nyou"}),
        ({"role": "user", "content": [{"type": "text", "text": "Hi", "image_url": None}]}, HI),
        ({**HI, "name": None, "tool_calls": None, "function_call": None, "refusal": None, "tool_call_id": None}, HI),
        ({"role": "system", "content": "Be.", "cache_control": {}}, {"role": "system", "content": "Be."}),
    ],
)  # fmt: skip
def test_what_is_not_for_the_model_is_ignored(mirror: Running, message: Any, meant: Any) -> None:
    assert seen(mirror, message) == meant


SAID = {"role": "assistant", "content": "yes"}
NOTHING = {"role": "assistant", "content": ""}
CALLED = {**NOTHING, "tool_calls": [call({"a": 1, "b": 2})]}
OLD_CALL = {"id": "call00001", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


@pytest.mark.parametrize(
    ("message", "meant"),
    [
        ({**SAID, "parsed": {"a": 1}, "audio": None, "annotations": [], "function_call": None, "refusal": None}, SAID),
        ({**SAID, "parsed": None, "thinking_blocks": [{"type": "thinking", "thinking": "x", "signature": "s"}]}, SAID),
        ({**SAID, "reasoning_details": [{"type": "reasoning.text", "text": "x"}], "tool_calls": []}, SAID),
        ({**SAID, "content": ["yes"]}, SAID),
        ({**SAID, "content": [{"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}]}, SAID),
        ({**SAID, "content": [{"type": "text", "text": "y"}, "n"]}, {**SAID, "content": "y\nn"}),
        ({"role": "assistant"}, NOTHING),
        ({"role": "assistant", "content": None}, NOTHING),
        ({"role": "assistant", "content": []}, NOTHING),
        ({"role": "assistant", "content": [], "refusal": "no"}, {**NOTHING, "content": "no"}),
        ({"role": "assistant", "content": None, "reasoning_content": "hm"}, {**NOTHING, "reasoning_content": "hm"}),
        ({"role": "assistant", "reasoning": "hm"}, {**NOTHING, "reasoning_content": "hm"}),
        ({**SAID, "reasoning": {"effort": "low"}, "reasoning_content": None}, SAID),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, "yes"]},
            {**SAID, "reasoning_content": "hm"},
        ),
        (
            {**SAID, "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, "yes"]},
            {**SAID, "reasoning_content": "hm"},
        ),
        ({**SAID, "content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "yes"}]}, SAID),
        ({"role": "assistant", "content": None, "tool_calls": [call('{"a": 1, "b": 2}', index=0)]}, CALLED),
        ({"role": "assistant", "tool_calls": [call('{"a": 1, "b": 2}', provider_specific_fields={})]}, CALLED),
        ({"role": "assistant", "tool_calls": [call({"a": 1, "b": 2})]}, CALLED),
        (
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        **call(""),
                        "function": {"name": "add", "arguments": '{"a": 1, "b": 2}', "parsed_arguments": {"a": 1}},
                    }
                ],
            },
            CALLED,
        ),
        (
            {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"a": 1}'}},
            {**NOTHING, "tool_calls": [OLD_CALL]},
        ),
    ],
)  # fmt: skip
def test_an_assistants_turn_comes_back(mirror: Running, message: Any, meant: Any) -> None:
    assert seen(mirror, message) == meant


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ('{"a": 1', '{"a": 1'),
        ("add 1 and 2", "add 1 and 2"),
        ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": 1e999}', '{"a": 1e999}'),
        ("[1, 2]", [1, 2]),
        ('"x"', "x"),
        ("5", 5),
        ("", {}),
        (" ", {}),
        ("null", {}),
        (None, {}),
        ("[" * 5000, "[" * 5000),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
        ('{"a": -9223372036854775809, "b": 1.0}', {"a": -9223372036854775809, "b": 1.0}),
        ({"a": 2**64}, {"a": 2**64}),
        ('{"a": "\\ud83d"}', {"a": "\ud83d"}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"a": "\\u0000\\"\\n"}', {"a": '\0"\n'}),
    ],
)
def test_arguments_are_what_was_written(mirror: Running, given: Any, meant: Any) -> None:
    message = seen(mirror, {"role": "assistant", "tool_calls": [call(given)]})
    found = message["tool_calls"][0]["function"]["arguments"]
    assert found == meant
    assert type(found) is type(meant)
    if isinstance(given, str) or given is None:
        item = {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": given}
        assert seen_items(mirror, item)[0]["tool_calls"] == message["tool_calls"]


def test_numbers_reach_the_template_unchanged(mirror: Running) -> None:
    most = 2**80 + 1
    parameters = {"type": "object", "properties": {"a": {"type": "integer", "maximum": most}}}
    for path, tool in (
        ("/v1/chat/completions", {"type": "function", "function": {"name": "f", "parameters": parameters}}),
        ("/v1/responses", {"type": "function", "name": "f", "parameters": parameters}),
    ):
        body = {"model": MODEL, "tools": [tool], ("messages" if "chat" in path else "input"): [HI]}
        response = mirror.post(path, body)
        assert response.status_code == 200, response.text
        (shown,) = json.loads(prompt_of(mirror))["tools"]
        assert shown["function"]["parameters"] == parameters
    assert response.json()["tools"][0]["parameters"] == parameters
    schema = {"type": "json_schema", "json_schema": {"schema": {"type": "integer", "maximum": most}}}
    assert mirror.chat(response_format=schema).status_code == 200
    grammar = mirror.backend.requests[-1].grammar
    assert grammar is not None
    assert json.loads(grammar.value)["maximum"] == most


@pytest.mark.parametrize("content", [None, [], ""])
def test_a_result_may_be_empty(mirror: Running, content: Any) -> None:
    turn = {"role": "assistant", "content": None, "tool_calls": [call("{}")]}
    result = {"role": "tool", "content": content, "tool_call_id": "call_1", "name": None, **EXTRAS}
    assert seen(mirror, turn, result) == {"role": "tool", "content": "", "tool_call_id": "call_1"}
    items = [
        {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": "{}", "namespace": None, **EXTRAS},
        {"type": "function_call_output", "call_id": "call_1", "output": content, **EXTRAS},
    ]
    assert seen_items(mirror, *items)[-1] == {"role": "tool", "content": "", "tool_call_id": "call_1"}


def test_functions_of_before_tools(mirror: Running) -> None:
    first = {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": "{}"}}
    result = {"role": "function", "name": "add", "content": "3"}
    assert seen(mirror, first, result, first, {**result, "content": None}) == {
        "role": "tool", "name": "add", "content": "", "tool_call_id": "call00002",
    }  # fmt: skip
    messages = json.loads(prompt_of(mirror))["messages"]
    assert messages[2] == {"role": "tool", "name": "add", "content": "3", "tool_call_id": "call00001"}
    assert messages[3]["tool_calls"][0]["id"] == "call00002"


def test_half_a_character_is_told_or_replaced(mirror: Running) -> None:
    """Text that was cut in mid-emoji; as a key or value of anything else it is an error that names its field."""

    def send(**body: Any) -> Any:
        content = json.dumps({"model": MODEL, "messages": [HI], **body})
        return mirror.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})

    assert send(messages=[{"role": "user", "content": "a\ud83d"}]).status_code == 200
    assert json.loads(prompt_of(mirror))["messages"][0]["content"] == "a\ud83d"  # JSON can write it
    for body, param in (
        ({"model": "\ud800"}, "model"),
        ({"stop": ["a", "\ud800"]}, "stop[1]"),
        ({"metadata": {"\ud800": "x"}}, "metadata.\ufffd"),
        ({"\ud800": 1}, "\ufffd"),
        (
            {"tools": [{**ADD, "function": {**ADD["function"], "description": "\ud800"}}]},
            "tools[0].function.description",
        ),
    ):
        response = send(**body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param


def test_half_a_character_in_plain_text_is_replaced(gateway: Running) -> None:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "a\ud83d"}]})
    for path in ("/v1/chat/completions", "/v1/responses"):
        body = body.replace('"messages"', '"input"') if "responses" in path else body
        response = gateway.post(path, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 200, response.text
        assert prompt_of(gateway) == "<|user|>a\ufffd<|end|><|assistant|>"


def test_errors_about_half_a_character_are_told(mirror: Running) -> None:
    for path, name in (("/v1/chat/completions", "messages"), ("/v1/responses", "input")):
        for message in ({"role": "\ud800", "content": "x"}, {"role": "user", "content": [{"type": "\ud800"}]}):
            body = json.dumps({"model": MODEL, name: [message]})
            response = mirror.post(path, content=body, headers={"content-type": "application/json"})
            assert response.status_code == 400, response.text
        long = {"role": "user", "content": "\ud800" * 9000}
        body = json.dumps({"model": MODEL, name: [long]})
        response = mirror.post(path, content=body, headers={"content-type": "application/json"})
        assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("template", "joined"),
    [
        (ONE_SYSTEM, "<system>A\n\nB\n\nC<user>Hi"),
        (DROPPING, "<first>A\n\nB\n\nC<user>Hi"),
        ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", "<system>A<system>B<system>C<user>Hi"),
    ],
)
def test_instructions_are_joined_where_a_template_takes_one(start: Start, template: str, joined: str) -> None:
    running = start(ScriptedBackend(served=model(template)))
    roles = ("system", "developer", "system")
    front = [{"role": role, "content": text} for role, text in zip(roles, "ABC", strict=True)]
    assert running.chat(messages=[*front, HI]).status_code == 200
    assert prompt_of(running) == joined
    body = {"model": MODEL, "instructions": "A", "input": [*front[1:], HI]}
    assert running.post("/v1/responses", body).status_code == 200
    assert prompt_of(running) == joined
    assert running.chat(messages=[front[0], HI]).status_code == 200
    assert prompt_of(running).endswith("A<user>Hi")
