"""What Codex's command line, and agents like it, send to /v1/responses."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from api_doubles import MODEL, TOKENIZER, Running, ScriptedBackend, Start
from test_api_sent_back import MIRROR
from test_api_tools import CALL, model

SHELL: dict[str, Any] = {
    "type": "function",
    "name": "shell",
    "description": "Runs a command",
    "strict": False,
    "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}},
}
TOOLS: list[dict[str, Any]] = [
    {"type": "web_search", "external_web_access": False},
    SHELL,
    {"type": "local_shell"},
    {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
    {"type": "image_generation", "output_format": "png"},
    {"type": "namespace", "name": "mcp__docs", "tools": [{"type": "function", "name": "find"}]},
    {"type": "tool_search"},
]
REQUEST: dict[str, Any] = {
    "model": MODEL,
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files."}]},
    ],
    "tools": TOOLS,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "high", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199a213-81c0-7800-8aa1-bbab2a035a53",
    "client_metadata": {"x-codex-installation-id": "3f0f", "turn": {"n": 1}},
}


@pytest.fixture(scope="module")
def mirror(start_session: Start) -> Running:
    return start_session(ScriptedBackend(text=CALL.replace("add", "shell"), served=model(MIRROR, context_length=8192)))


def given(running: Running) -> Any:
    return json.loads(TOKENIZER.decode(running.backend.requests[-1].prompt, skip_special_tokens=False))


def events(response: Any) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines]


def test_codex_is_served(mirror: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "server"):
        response = mirror.post("/v1/responses", REQUEST)
    assert response.status_code == 200, response.text
    prompt = given(mirror)
    assert [message["role"] for message in prompt["messages"]] == ["system", "system", "user", "user"]
    assert [tool["function"]["name"] for tool in prompt["tools"]] == ["shell"]
    notes = " ".join(record.getMessage() for record in caplog.records)
    for kind in ("web_search", "local_shell", "custom", "namespace", "tool_search"):
        assert kind in notes
    assert "reasoning_effort is ignored" in notes
    last = events(response)[-1]
    assert last["type"] == "response.completed"
    (call,) = last["response"]["output"]
    again = [
        *REQUEST["input"],
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "x"},
        call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "a.txt"},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<changed>"}]},
    ]
    assert mirror.post("/v1/responses", {**REQUEST, "input": again}).status_code == 200
    roles = [message["role"] for message in given(mirror)["messages"]]
    assert roles == ["system", "system", "user", "user", "assistant", "tool", "system"]


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "web_search"}, "tool_choice"),
        ({"type": "custom", "name": "apply_patch"}, "tool_choice"),
        ({"type": "mcp", "server_label": "docs"}, "tool_choice"),
        ({"type": "function", "name": "apply_patch"}, "tool_choice.name"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "local_shell"}]}, "tool_choice.tools[0].type"),
    ],
)
def test_a_choice_of_what_cannot_be_called_is_refused(mirror: Running, choice: Any, param: str) -> None:
    response = mirror.post("/v1/responses", {**REQUEST, "stream": False, "tool_choice": choice})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_without_any_function_there_is_nothing_to_call(mirror: Running) -> None:
    others = [tool for tool in TOOLS if tool["type"] != "function"]
    assert mirror.post("/v1/responses", {**REQUEST, "tools": others}).status_code == 200
    assert given(mirror)["tools"] is None
    required = mirror.post("/v1/responses", {**REQUEST, "tools": others, "tool_choice": "required"})
    assert required.json()["error"]["param"] == "tool_choice"


def test_an_error_names_the_tool_as_it_was_sent(mirror: Running) -> None:
    wrong = {**SHELL, "name": "other", "parameters": {"type": "array"}}
    response = mirror.post("/v1/responses", {**REQUEST, "tools": [*TOOLS, wrong]})
    assert response.json()["error"]["param"] == f"tools[{len(TOOLS)}].parameters.type"


@pytest.mark.parametrize(
    "reasoning",
    [
        {"summary": "concise"},
        {"summary": "detailed", "effort": "max"},
        {"generate_summary": "auto"},
        {"summary": None, "effort": None, "context": "auto", "mode": "standard"},
        {"effort": "minimal"},
        None,
    ],
)
def test_reasoning_options(mirror: Running, reasoning: Any) -> None:
    response = mirror.post("/v1/responses", {**REQUEST, "stream": False, "reasoning": reasoning})
    assert response.status_code == 200, response.text


def test_a_thought_alone_is_a_turn(mirror: Running) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}], "phase": None}
    user = {"role": "user", "content": "Hi"}
    for items, expected in (
        ([user, thought], [("", "hm")]),
        ([user, thought, thought, said], [("yes", "hmhm")]),
        ([user, thought, user], [("", "hm")]),
        ([user, said, thought, {**said, "content": []}], [("yes", None), ("", "hm")]),
    ):
        assert mirror.post("/v1/responses", {**REQUEST, "input": items}).status_code == 200
        turns = [message for message in given(mirror)["messages"] if message["role"] == "assistant"]
        assert [(turn["content"], turn.get("reasoning_content")) for turn in turns] == expected
