"""A Responses request as a chat request: its items and parameters, and errors in its own field names."""

from __future__ import annotations

from typing import Any

import pytest
from api_doubles import MODEL, Running, error, prompt_of

NOOP: dict[str, Any] = {"type": "function", "name": "noop"}


def refused(running: Running, **changes: Any) -> dict[str, Any]:
    return error(running.post("/v1/responses", {"model": MODEL, "input": "Hi", **changes}))


def test_parameters_reach_the_workers(gateway: Running) -> None:
    gateway.sdk.responses.create(
        model=MODEL, input="Hi", temperature=0.5, top_p=0.9, max_output_tokens=3,
        extra_body={"seed": 1, "top_k": 5, "speculative": {"draft_tokens": 2}},
    )  # fmt: skip
    asked = gateway.backend.requests[-1]
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.sampling.top_k) == (0.5, 0.9, 5)
    assert (asked.max_tokens, asked.sampling.seed, asked.speculation.draft_tokens) == (3, 1, 2)


def test_every_kind_of_item_reaches_the_template(tools: Running) -> None:
    tools.sdk.responses.create(
        model=MODEL,
        input=[
            {"role": "developer", "content": "D"},
            {"role": "user", "content": [{"type": "input_text", "text": "1"}, {"type": "input_text", "text": "2"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {
                "type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                "content": [{"type": "output_text", "text": "calling", "annotations": []}],
            },
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
            {"type": "function_call", "call_id": "c2", "name": "add", "arguments": '{"a": 2}'},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "4"}]},
        ],
    )  # fmt: skip
    assert prompt_of(tools) == (
        "<|system|>D<|end|><|user|>1\n2<|end|>"
        "<|assistant|>calling<tool_call>add(1)</tool_call><|end|><|tool|>3<|end|>"
        "<|assistant|><tool_call>add(2)</tool_call><|end|><|tool|>4<|end|><|assistant|>"
    )


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_tool_calls": 2}, "max_tool_calls"),
        ({"max_tokens": 2}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"type": "message", "message": {"role": "user"}, "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [{"type": ["x"]}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": 5}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 100_000}, "input"),
        ({"instructions": "x y " * 1000}, "instructions"),
        ({"instructions": "x", "input": "x y " * 1000}, "input"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["all"]}, "include[0]"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "json_schema": {"name": "n"}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"effort": "very"}}, "reasoning.effort"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"model": None}, "model"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_named(gateway: Running, changes: dict[str, Any], param: str) -> None:
    found = refused(gateway, **changes)
    assert found["param"] == param
    assert "messages" not in found["message"] or param == "messages"
    assert "instance of" not in found["message"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tools": [{**NOOP, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [NOOP, NOOP]}, "tools[1].name"),
        ({"tools": [{**NOOP, "parameters": {"type": "array"}}]}, "tools[0].parameters.type"),
        ({"tools": [NOOP], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tools": [NOOP], "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tools": [NOOP], "include": ["message.output_text.logprobs"]}, "include"),
    ],
)
def test_what_is_wrong_with_tools_is_named(tools: Running, changes: dict[str, Any], param: str) -> None:
    assert refused(tools, **changes)["param"] == param
