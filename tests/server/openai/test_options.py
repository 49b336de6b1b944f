"""What clients send with every request: numbers, stops, schemas and choices of tools, in the forms that they use."""

from __future__ import annotations

import json
from typing import Any

import pytest
from api_doubles import MODEL, Running, ScriptedBackend, Start, prompt_of
from test_api_tools import ADD, CALL, NOOP, model

# The prompt is all that a template is given, as JSON. The mark tells how calls are written.
MIRROR = '{# <tool_call> #}{{ {"messages": messages, "tools": tools} | tojson }}'
HI: dict[str, Any] = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def backend() -> ScriptedBackend:
    return ScriptedBackend(served=model(MIRROR, context_length=8192))


@pytest.fixture(scope="module")
def mirror(start_session: Start, backend: ScriptedBackend) -> Running:
    return start_session(backend)


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


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models", f"/v1/models/{MODEL}"])
def test_head_is_get_without_a_body(gateway: Running, path: str) -> None:
    response = gateway.http.head(gateway.url + path)
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-type"] == gateway.get(path).headers["content-type"]
