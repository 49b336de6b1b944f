"""What clients send back, or send always, reaches the template as what it means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from api_doubles import MODEL, TOKENIZER, Running, ScriptedBackend, Start
from test_api_tools import ADD, CALL, NOOP, model

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


def prompt_of(running: Running) -> str:
    return TOKENIZER.decode(running.backend.requests[-1].prompt, skip_special_tokens=False)


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


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens": 10.0, "n": 1.0, "seed": 7.0, "top_k": 5.0, "min_tokens": 1.0, "stop_token_ids": [5.0]},
        {"max_completion_tokens": 3.0, "logprobs": True, "top_logprobs": 2.0, "best_of": 1.0, "length_penalty": 1},
        {"speculative": {"draft_tokens": 4.0, "num_candidates": 1.0, "max_speculation_depth": 8.0}},
        {"stop": ["<|im_end|>", "<|endoftext|>", "\n\n", "a1", "b1", "c1", "d1", "e1"]},
        {"stop": ""},
        {"stop": ["", "", "x1"]},
        {"stream_options": {"include_usage": True}},
        {"stream_options": None},
        {"parallel_tool_calls": True},
        {"top_logprobs": 0},
        {"reasoning_effort": "high"},
        {"reasoning_effort": "none"},
        {"prompt_cache_options": {"mode": "implicit"}, "service_tier": "fast", "verbosity": "medium"},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "A[int] b.c", "schema": {}}}},
        {"tools": [ADD], "tool_choice": {"type": "auto"}},
        {"tools": [{"function": {**ADD["function"], "cache_control": {}, "strict": None}, "cache_control": {}}]},
        {"tools": [{**ADD, "type": None, "function": {"name": "srv.sub/do:it-now", "description": None}}]},
        {"tools": [{**ADD, "function": {"name": "f", "parameters": {"type": ["object", "null"], "properties": {}}}}]},
        {"tools": [{**ADD, "function": {"name": "f", "parameters": {"type": None, "properties": None}}}]},
    ],
)
def test_what_popular_clients_send_is_accepted(mirror: Running, changes: dict[str, Any]) -> None:
    response = mirror.chat(**changes)
    assert response.status_code == 200, response.text


def test_a_tool_is_shown_as_it_was_meant(mirror: Running) -> None:
    """Without nulls of its own and unknown fields; its schema, with nulls, as it came."""
    parameters = {"type": ["object", "null"], "properties": {"a": {"default": None, "x-order": 1}}, "required": None}
    function = {"name": "srv.do", "description": None, "parameters": parameters, "strict": True, "cache_control": {}}
    assert mirror.chat(tools=[{"type": None, "function": function, "id": 5}]).status_code == 200
    (shown,) = json.loads(prompt_of(mirror))["tools"]
    assert shown == {"type": "function", "function": {"name": "srv.do", "parameters": parameters, "strict": True}}


def test_whole_numbers_mean_what_they_say(mirror: Running) -> None:
    mirror.chat(max_tokens=3.0, seed=7.0, top_k=5.0, stop_token_ids=[5.0, 6])
    request = mirror.backend.requests[-1]
    assert (request.max_tokens, request.sampling.seed, request.sampling.top_k) == (3, 7, 5)
    assert request.sampling.stop_token_ids == [5, 6]
    ids = mirror.post("/v1/completions", {"model": MODEL, "prompt": [40.0, 41], "max_tokens": 2.0})
    assert ids.status_code == 200
    assert mirror.backend.requests[-1].prompt == [40, 41]
    assert mirror.post("/v1/completions", {"model": MODEL, "prompt": [40.5]}).status_code == 400
    assert mirror.post("/v1/responses", {"model": MODEL, "input": "Hi", "max_output_tokens": 3.0}).status_code == 200
    assert mirror.backend.requests[-1].max_tokens == 3


def test_top_p_zero_is_greedy(mirror: Running) -> None:
    for path, body in (("/v1/chat/completions", {"messages": [HI]}), ("/v1/responses", {"input": "Hi"})):
        body = {"model": MODEL, "top_p": 0, "temperature": 1.3, "seed": 1, **body}
        assert mirror.post(path, body).status_code == 200
        sampling = mirror.backend.requests[-1].sampling
        assert (sampling.temperature, sampling.top_p) == (0.0, 1.0)


def test_completions_take_what_chat_takes(gateway: Running) -> None:
    extras = {"metadata": {"a": "b"}, "store": False, "max_completion_tokens": 2, "stop": "", "top_p": 0}
    response = gateway.post("/v1/completions", {"model": MODEL, "prompt": "the", **extras})
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == 2
    both = gateway.post("/v1/completions", {"model": MODEL, "prompt": "the", "max_tokens": 9, **extras})
    assert both.json()["usage"]["completion_tokens"] == 2


def test_empty_stops_stop_nothing(gateway: Running) -> None:
    assert gateway.chat(stop=["", "fox"]).json()["choices"][0]["message"]["content"] == "the quick brown "
    assert gateway.chat(stop=[""] * 40).json()["choices"][0]["message"]["content"] == "the quick brown fox"


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    "format",
    [
        {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": None}, "schema": None},
        {"type": "json_schema", "schema": SCHEMA},
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_object", "schema": SCHEMA, "json_schema": None},
    ],
)
def test_a_schema_may_stand_in_several_places(mirror: Running, format: Any) -> None:
    assert mirror.chat(response_format=format).status_code == 200
    grammar = mirror.backend.requests[-1].grammar
    assert grammar is not None
    assert (grammar.type, json.loads(grammar.value)) == ("json_schema", SCHEMA)


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
def test_a_schema_is_never_dropped(mirror: Running, format: Any, param: str) -> None:
    response = mirror.chat(response_format=format)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


NAMED = {"type": "function", "function": {"name": "add"}}
FLAT = {"type": "function", "name": "add"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ("auto", None),
        ({"type": "auto"}, None),
        ({"type": "none"}, None),
        ("any", ["add", "noop"]),
        ({"type": "any"}, ["add", "noop"]),
        ({"type": "required"}, ["add", "noop"]),
        (NAMED, ["add"]),
        (FLAT, ["add"]),
        ({"type": "tool", "name": "noop"}, ["noop"]),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}, ["add"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [FLAT, {**FLAT, "name": "noop"}]}, ["add", "noop"]),
        ({"type": "allowed_tools", "mode": "auto", "tools": [FLAT]}, None),
    ],
)
def test_choices_of_tools_in_every_form(mirror: Running, path: str, choice: Any, forced: list[str] | None) -> None:
    tools = [ADD, NOOP]
    body: dict[str, Any] = {"messages": [HI], "tools": tools}
    if path == "/v1/responses":
        body = {"input": [HI], "tools": [{"type": "function", **tool["function"]} for tool in tools]}
    response = mirror.post(path, {"model": MODEL, "tool_choice": choice, **body})
    assert response.status_code == 200, response.text
    grammar = mirror.backend.requests[-1].grammar
    assert (grammar is not None) == (forced is not None)
    for name in ("add", "noop") if grammar is not None else ():
        assert (f'\\"name\\": \\"{name}\\"' in grammar.value) == (name in (forced or ()))


def test_only_allowed_tools_are_called(start: Start) -> None:
    running = start(ScriptedBackend(text=CALL, served=model(MIRROR, context_length=8192)))
    for name, calls in (("add", 1), ("noop", 0)):
        allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": name}}]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        message = running.chat(tools=[ADD, NOOP], tool_choice=choice).json()["choices"][0]["message"]
        assert len(message.get("tool_calls") or ()) == calls


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "function"}, "tool_choice"),
        ({"type": "function", "name": "sub"}, "tool_choice.function.name"),
        ({"type": "allowed_tools"}, "tool_choice"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.tools"),
        ({"type": "allowed_tools", "mode": "none", "tools": [FLAT]}, "tool_choice.mode"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, "tool_choice.tools[0].type"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function"}]}, "tool_choice.tools[0]"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{**FLAT, "name": "x"}]}, "tool_choice.tools"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [5]}, "tools": []},
            "tool_choice.allowed_tools.tools[0]",
        ),
        ({"type": "custom", "custom": {"name": "x"}}, "tool_choice.type"),
        ("add", "tool_choice"),
    ],
)
def test_choices_that_cannot_be_honoured(mirror: Running, choice: Any, param: str) -> None:
    response = mirror.chat(tools=[ADD, NOOP], tool_choice=choice)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)


def test_a_compressed_body_is_refused_by_name(gateway: Running) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = gateway.post("/v1/chat/completions", content=b"\x1f\x8b", headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert "gzip" in response.json()["error"]["message"]
    plain = {**headers, "content-encoding": "identity"}
    body = json.dumps({"model": MODEL, "messages": [HI]})
    assert gateway.post("/v1/chat/completions", content=body, headers=plain).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models", f"/v1/models/{MODEL}"])
def test_head_is_get_without_a_body(gateway: Running, path: str) -> None:
    response = gateway.http.head(gateway.url + path)
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-type"] == gateway.get(path).headers["content-type"]
