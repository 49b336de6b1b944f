"""What a request's `tools`, `tool_choice` and `parallel_tool_calls` ask for, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

MAX_TOOLS = 128
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class ToolError(ValueError):
    """A 400: `param` is the dotted path of the field at fault."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Function:
    """One tool. `parameters` is a JSON schema; a function without one takes no arguments."""

    name: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`functions`: those the model may call (all, or the named one). `mode` auto: it may also just answer."""

    mode: Literal["none", "auto", "required"]
    functions: tuple[Function, ...]
    parallel: bool

    @property
    def names(self) -> frozenset[str]:
        return frozenset(function.name for function in self.functions)


def resolve(
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: str | Mapping[str, Any] | None,
    parallel_tool_calls: bool | None,
) -> ToolUse:
    """From the request's fields, as JSON, to what they mean. Raises ToolError.

    A named function is `required` with one function, and one call, as OpenAI has it. `none` keeps the tools in the
    prompt (the template may say otherwise) and reads no calls.
    """
    if not tools:
        if tool_choice not in (None, "none", "auto"):
            raise ToolError("tool_choice is only allowed when tools are given", "tool_choice")
        if parallel_tool_calls is not None:
            raise ToolError("parallel_tool_calls is only allowed when tools are given", "parallel_tool_calls")
        return ToolUse("none", (), False)
    if len(tools) > MAX_TOOLS:
        raise ToolError(f"there may be at most {MAX_TOOLS} tools, these are {len(tools)}", "tools")
    functions = tuple(_function(tool, f"tools[{index}]") for index, tool in enumerate(tools))
    seen: set[str] = set()
    for index, function in enumerate(functions):
        if function.name in seen:
            raise ToolError(f"there are two functions named {function.name!r}", f"tools[{index}].function.name")
        seen.add(function.name)
    parallel = parallel_tool_calls is not False
    if tool_choice is None or tool_choice == "auto":
        return ToolUse("auto", functions, parallel)
    if tool_choice == "none":
        return ToolUse("none", functions, parallel)
    if tool_choice == "required":
        return ToolUse("required", functions, parallel)
    return ToolUse("required", (_named(tool_choice, functions),), False)


def _function(tool: Mapping[str, Any], path: str) -> Function:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise ToolError("only tools of type 'function' are supported", f"{path}.type")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise ToolError("a tool needs a function", f"{path}.function")
    name = function.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= 64 or not NAME_CHARACTERS.issuperset(name):
        raise ToolError(
            "a function's name is 1 to 64 of the characters a-z, A-Z, 0-9, _ and -", f"{path}.function.name"
        )
    parameters = function.get("parameters")
    if parameters is None or parameters == {}:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(parameters, Mapping):
        raise ToolError("parameters must be a JSON schema", f"{path}.function.parameters")
    if parameters.get("type", "object") != "object":
        raise ToolError("parameters must be a JSON schema of type 'object'", f"{path}.function.parameters.type")
    return Function(name, parameters)


def _named(tool_choice: str | Mapping[str, Any], functions: Sequence[Function]) -> Function:
    if isinstance(tool_choice, str) or tool_choice.get("type") != "function":
        raise ToolError("must be 'none', 'auto', 'required' or a named function", "tool_choice")
    chosen = tool_choice.get("function")
    name = chosen.get("name") if isinstance(chosen, Mapping) else None
    for function in functions:
        if function.name == name:
            return function
    raise ToolError(f"there is no function named {name!r} in tools", "tool_choice.function.name")
