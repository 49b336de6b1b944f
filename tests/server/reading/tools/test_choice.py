from __future__ import annotations

from typing import Any

import pytest

from server.reading.tools.choice import ToolError, resolve


def _tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_what_the_fields_mean() -> None:
    tools = [_tool("add", {"type": "object", "properties": {}}), _tool("noop")]
    use = resolve(tools, None, None)
    assert (use.mode, use.names, use.parallel) == ("auto", {"add", "noop"}, True)
    assert resolve(tools, "none", None).mode == "none"
    assert resolve(tools, "required", False) == resolve(tools, "required", False)
    assert not resolve(tools, "required", False).parallel
    named = resolve(tools, {"type": "function", "function": {"name": "noop"}}, True)
    assert (named.mode, named.names, named.parallel) == ("required", {"noop"}, False)
    assert named.functions[0].parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert resolve(None, None, None).mode == "none"
    assert resolve([], "auto", None).mode == "none"


@pytest.mark.parametrize(
    ("tools", "choice", "parallel", "param"),
    [
        (None, "required", None, "tool_choice"),
        (None, {"type": "function", "function": {"name": "add"}}, None, "tool_choice"),
        ([_tool("add"), _tool("add")], None, None, "tools[1].function.name"),
        ([_tool("a b")], None, None, "tools[0].function.name"),
        ([_tool("")], None, None, "tools[0].function.name"),
        ([_tool("add", {"type": "array"})], None, None, "tools[0].function.parameters.type"),
        ([_tool("add", [1])], None, None, "tools[0].function.parameters"),
        ([{"type": "custom"}], None, None, "tools[0].type"),
        ([{"type": "function"}], None, None, "tools[0].function"),
        ([_tool(f"f{i}") for i in range(129)], None, None, "tools"),
        ([_tool("add")], "other", None, "tool_choice"),
        ([_tool("add")], {"type": "function", "function": {"name": "sub"}}, None, "tool_choice.function.name"),
        ([_tool("add")], {"type": "function", "function": "add"}, None, "tool_choice.function.name"),
    ],
)
def test_an_error_names_its_field(tools: Any, choice: Any, parallel: bool | None, param: str) -> None:
    with pytest.raises(ToolError) as raised:
        resolve(tools, choice, parallel)
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("given", "enforced"),
    [
        ({"type": ["object", "null"], "required": ["a"]}, {"type": "object", "required": ["a"]}),
        ({"type": None, "properties": None, "required": None}, {"type": "object"}),
        ({"type": "object", "properties": {"a": {"default": None}}, "additionalProperties": None},
         {"type": "object", "properties": {"a": {"default": None}}}),
        ({"properties": {}}, {"type": "object", "properties": {}}),
        ({"anyOf": [{"type": "object"}]}, {"anyOf": [{"type": "object"}]}),
    ],
)  # fmt: skip
def test_arguments_are_an_object_however_their_type_is_written(given: Any, enforced: Any) -> None:
    (function,) = resolve([_tool("f", given)], "required", None).functions
    assert function.parameters == enforced
