"""What a request's `tools`, `tool_choice` and `parallel_tool_calls` ask for, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

MAX_TOOLS = 128
MAX_NAME_LENGTH = 128
# With what MCP servers put into names. None of these is escaped in JSON, so that a grammar may spell a name out.
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/")
Mode = Literal["none", "auto", "required"]
_COMBINED = frozenset({"$ref", "allOf", "anyOf", "oneOf"})


class ToolError(ValueError):
    """A 400: `param` is the dotted path of the field at fault."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Function:
    """One tool. `parameters` is a JSON schema; a function without one takes no arguments.

    `strict`: its arguments are held to the schema even where the model is free to call or not. `param`: the request's
    field with its parameters.
    """

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False
    param: str = ""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`functions`: those the model may call (all, or the chosen ones). `mode` auto: it may also just answer."""

    mode: Mode
    functions: tuple[Function, ...]
    parallel: bool

    @property
    def names(self) -> frozenset[str]:
        return frozenset(function.name for function in self.functions)

    @property
    def schemas(self) -> Mapping[str, Mapping[str, Any]]:
        """Those of the functions' arguments, by name."""
        return {function.name: function.parameters for function in self.functions}


def resolve(
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: str | Mapping[str, Any] | None,
    parallel_tool_calls: bool | None,
) -> ToolUse:
    """From the request's fields, as JSON, to what they mean. Raises ToolError.

    A named function is `required` with one function, and one call, as OpenAI has it. `any` is `required`. With `none`
    no calls are read, and the prompt shows no tools. `parallel_tool_calls` says nothing without tools: some clients
    always send it.
    """
    mode, names, path = _chosen(tool_choice)
    if not tools:
        if mode == "required" or names is not None:
            raise ToolError("tool_choice is only allowed when tools are given", "tool_choice")
        return ToolUse("none", (), False)
    if len(tools) > MAX_TOOLS:
        raise ToolError(f"there may be at most {MAX_TOOLS} tools, these are {len(tools)}", "tools")
    functions = tuple(_function(tool, f"tools[{index}]") for index, tool in enumerate(tools))
    seen: set[str] = set()
    for index, function in enumerate(functions):
        if function.name in seen:
            raise ToolError(f"there are two functions named {function.name!r}", f"tools[{index}].function.name")
        seen.add(function.name)
    if names is None:
        return ToolUse(mode, functions, parallel_tool_calls is not False)
    for name in names:
        if name not in seen:
            raise ToolError(f"there is no function named {name[:128]!r} in tools", path)
    chosen = tuple(function for function in functions if function.name in names)
    return ToolUse(mode, chosen, parallel_tool_calls is not False and path != "tool_choice.function.name")


def _function(tool: Mapping[str, Any], path: str) -> Function:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise ToolError("only tools of type 'function' are supported", f"{path}.type")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise ToolError("a tool needs a function", f"{path}.function")
    name = function.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_LENGTH or not NAME_CHARACTERS.issuperset(name):
        raise ToolError(
            f"a function's name is 1 to {MAX_NAME_LENGTH} of the characters a-z, A-Z, 0-9, _, -, ., : and /",
            f"{path}.function.name",
        )
    parameters = function.get("parameters")
    if parameters is None or parameters == {}:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(parameters, Mapping):
        raise ToolError("parameters must be a JSON schema", f"{path}.function.parameters")
    schema = _of_object(parameters, f"{path}.function.parameters.type")
    return Function(name, schema, function.get("strict") is True, f"{path}.function.parameters")


def _of_object(parameters: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The schema of the arguments, which are an object: some clients write its type as a list, or as null.

    Null means the default for the keywords beside it too.
    """
    kind = parameters.get("type")
    if kind not in (None, "object") and not (isinstance(kind, list) and "object" in kind):
        raise ToolError("parameters must be a JSON schema of type 'object'", path)
    if kind == "object" and None not in parameters.values():
        return parameters
    schema = {keyword: value for keyword, value in parameters.items() if value is not None}
    if "type" in parameters or not _COMBINED.intersection(schema):
        schema["type"] = "object"
    return schema


def _chosen(tool_choice: str | Mapping[str, Any] | None) -> tuple[Mode, Sequence[str] | None, str]:
    """The mode, the names of the functions that may be called (None: all), and where they were named."""
    said = tool_choice.get("type") if isinstance(tool_choice, Mapping) else tool_choice
    match said:
        case None | "auto":
            return "auto", None, ""
        case "none":
            return "none", None, ""
        case "required" | "any":
            return "required", None, ""
    if isinstance(tool_choice, Mapping) and said in ("function", "tool"):
        return "required", [_name(tool_choice, "tool_choice")], "tool_choice.function.name"
    if isinstance(tool_choice, Mapping) and said == "allowed_tools":
        beside = "allowed_tools" not in tool_choice
        path = "tool_choice.tools" if beside else "tool_choice.allowed_tools.tools"
        allowed = tool_choice if beside else tool_choice["allowed_tools"]
        names = [_name(tool, f"{path}[{index}]") for index, tool in enumerate(allowed["tools"])]
        return "required" if allowed["mode"] == "required" else "auto", names, path
    raise ToolError("must be 'none', 'auto', 'required', a named function or allowed_tools", "tool_choice")


def _name(tool: Mapping[str, Any], path: str) -> str:
    """Of a function, named as chat completions name it or as responses do."""
    if tool.get("type") not in ("function", "tool"):
        raise ToolError("only functions can be called", f"{path}.type")
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else tool.get("name")
    if not isinstance(name, str):
        raise ToolError("a function's name is needed", f"{path}.function.name")
    return name
