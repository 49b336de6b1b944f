"""Whatever a conversation holds, and wherever it holds it, the answer is a 200, or a 400 that names a field."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from api_doubles import MODEL, Running, ScriptedBackend, Start
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_api_codex import REQUEST
from test_api_tools import ADD, NOOP, TOOL_TEMPLATE, model

CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [
        {"role": "system", "content": "Be brief.", "name": None},
        {"role": "developer", "content": ["x"]},
        {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {}}], "name": "Ann"},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "yes"}],
            "reasoning_content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "3"},
        {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": "{"}},
        {"role": "function", "name": "add", "content": None},
    ],
    "tools": [ADD, NOOP],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NOOP]}},
    "response_format": {"type": "json_object", "schema": {"type": "object", "properties": {"a": {"maximum": 2**70}}}},
    "stop": ["", "x"],
    "top_p": 0,
    "max_tokens": 3.0,
    "metadata": {"a": "b"},
}
RESPONSE = {
    **REQUEST,
    "stream": False,
    "input": [
        *REQUEST["input"],
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "shell", "arguments": "{", "status": "incomplete"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "yes", "annotations": []}]},
    ],
}
ODD: Any = st.sampled_from(
    [
        *(None, [], {}, "", "x", "\ud800", 0, 1, -1, 1.5, 10.0, 2**70, -(2**64), 1e300, True, False),
        *([[]], [None], [1.0], {"": 1}, {"\ud800": "\ud800"}, {"$ref": "#"}, {"name": "a.b/c:d"}),
        *({"type": None}, {"type": "text"}, {"type": "text", "text": "\udfff"}, {"type": "function"}, {"role": "user"}),
        *("function", "tool", "any", "null", '{"a": "\\ud800"}', '{"a": 1e999}'),
    ]
)
HOW: Any = st.sampled_from(["replace", "remove", "add"])


def places(value: Any) -> list[tuple[Any, ...]]:
    """The path of everything below `value`."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(key, *rest) for key, below in inner for rest in [(), *places(below)]]


def changed(body: Any, place: tuple[Any, ...], value: Any, how: str) -> Any:
    body = copy.deepcopy(body)
    *front, last = place
    holder = body
    for step in front:
        holder = holder[step]
    if how == "replace":
        holder[last] = value
    elif how == "remove":
        del holder[last]
    elif isinstance(holder, dict):
        holder["foo"] = value
    else:
        holder.insert(last, value)
    return body


@pytest.fixture(scope="module")
def gateway(start_session: Start) -> Running:
    return start_session(ScriptedBackend(served=model(TOOL_TEMPLATE, context_length=8192)))


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/responses", RESPONSE)])
def test_no_conversation_is_too_odd(gateway: Running, path: str, body: Any) -> None:
    everywhere = [place for place in places(body) if place != ("model",)]  # another is a 404

    def post(odd: Any) -> Any:
        headers = {"content-type": "application/json"}
        return gateway.post(path, content=json.dumps(odd), headers=headers)

    assert post(body).status_code == 200

    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(st.tuples(st.sampled_from(everywhere), ODD, st.sampled_from(["replace", "remove", "add"])), max_size=3)
    )
    def check(changes: list[Any]) -> None:
        odd = body
        for place, value, how in changes:
            try:
                odd = changed(odd, place, value, how)
            except (KeyError, IndexError, TypeError, AttributeError):
                continue  # an earlier change took the place away
        response = post(odd)
        assert response.status_code in (200, 400), response.text
        if response.status_code == 400:
            error = response.json()["error"]
            assert error["param"] is not None or error["code"] == "invalid_json", error

    check()
