"""Tools for a model whose chat template does not know them: explained in words, with a conversation's calls as text.

llama-server serves such models the same way, and calls it the generic format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from server.reading.tools.argument_readers import pointed_at
from server.reading.tools.formats import CallFormat
from server.text import exact_json

Message = dict[str, Any]
_EXAMPLES: dict[str, Any] = {
    "string": "text", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None,
}  # fmt: skip


def instructions(form: CallFormat, tools: Sequence[Mapping[str, Any]]) -> str:
    """What a system message says of `tools` (as a request has them): each as JSON, how to call one, an example."""
    functions = [tool["function"] for tool in tools]
    shown = "\n".join(
        _json({key: function[key] for key in ("name", "description", "parameters") if key in function})
        for function in functions
    )
    parameters = functions[0].get("parameters") or {}
    arguments = _example_value({**parameters, "type": "object"}, parameters, depth=5)
    example = written_call(form, functions[0]["name"], arguments if isinstance(arguments, dict) else {})
    return (
        f"You can call these functions:\n{shown}\n\n"
        "To call one, answer with its name and its arguments as JSON and nothing else, like this:\n"
        f"{example}\n\n"
        "To call several, write one call after the other, each on a line of its own. You are then given the results. "
        "Where no function helps, answer in plain words."
    )


def written_call(form: CallFormat, name: str, arguments: Any) -> str:
    """A call in the form that the model is to write. Arguments that are no object (a call was cut) stay unchanged."""
    text = arguments if isinstance(arguments, str) else _json(arguments)
    call = f'{{"name": {_json(name)}, "{form.arguments}": {text}}}'
    if form.bare:
        return call
    if form.array:
        return f"{form.opener}[{call}{form.closer}"
    return f"{form.opener}\n{call}\n{form.closer}"


def with_instructions(messages: Sequence[Message], told: str, *, takes_system: bool) -> list[Message]:
    """`told` at the end of the system message in front, or as one; before the first user turn where there may be none.

    `messages` are those of a template: text in one string.
    """
    first, rest = (dict(messages[0]), list(messages[1:])) if messages else ({}, [])
    if first.get("role") in ("system", "developer"):
        first["content"] = _joined((first["content"], told))
        return [first, *rest]
    if takes_system:
        return [{"role": "system", "content": told}, *messages]
    if first.get("role") == "user":
        first["content"] = _joined((told, first["content"]))
        return [first, *rest]
    return [{"role": "user", "content": told}, *messages]


def with_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The functions as JSON in the system message itself, for a template that looks for them there (Phi-4-mini)."""
    first = messages[0] if messages and messages[0]["role"] == "system" else {"role": "system", "content": ""}
    rest = messages[1:] if messages and first is messages[0] else messages
    return [{**first, "tools": _json([tool["function"] for tool in tools])}, *rest]


def as_text(messages: Sequence[Message], form: CallFormat, *, knows_tool_role: bool) -> list[Message]:
    """The conversation without `tool_calls`: calls are the assistant's own text.

    Unless the template knows the role `tool`, results are a user's turn that says whose they are. Results that follow
    each other, and what the user says after them, make one turn: many templates want the roles to alternate.
    """
    names: dict[str, str] = {}
    turns: list[Message] = []
    results = False  # whether the last turn holds results
    for message in messages:
        plain = dict(message)
        calls = plain.pop("tool_calls", ())
        for call in calls:
            if "id" in call:
                names[call["id"]] = call["function"]["name"]
        if calls:
            written = (written_call(form, c["function"]["name"], c["function"]["arguments"]) for c in calls)
            plain["content"] = "\n".join(text for text in (plain["content"], *written) if text)
        if plain["role"] == "tool" and not knows_tool_role:
            call_id = plain["tool_call_id"]
            whose = names.get(call_id) or plain.get("name") or f"call {call_id}"
            plain = {"role": "user", "content": f"The result of {whose}:\n{plain['content']}"}
            if results:
                turns[-1] = {**turns[-1], "content": _joined((turns[-1]["content"], plain["content"]))}
                continue
            results = True
        elif plain["role"] == "user" and results:
            turns[-1] = {**turns[-1], "content": _joined((turns[-1]["content"], plain["content"]))}
            results = False
            continue
        else:
            results = False
        turns.append(plain)
    return turns


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part)


def _example(schema: Mapping[str, Any], document: Any, depth: int = 4) -> dict[str, Any]:
    """Arguments of the right kinds for the parameters that are required, or for all where none is."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    required = schema.get("required")
    names = [name for name in required if name in properties] if isinstance(required, list) else []
    return {name: _example_value(properties[name], document, depth) for name in names or properties}


def _example_value(schema: Any, document: Any, depth: int) -> Any:
    """A value of the kind that the schema asks for; references lead to places in `document`."""
    if not isinstance(schema, Mapping):
        return _EXAMPLES["string"]
    if "const" in schema:
        return schema["const"]
    for keyword in ("enum", "examples"):
        if isinstance(schema.get(keyword), list) and schema[keyword]:
            return schema[keyword][0]
    if depth and isinstance(schema.get("$ref"), str):
        return _example_value(pointed_at(schema["$ref"], document), document, depth - 1)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if depth and isinstance(schema.get(keyword), list) and schema[keyword]:
            return _example_value(schema[keyword][0], document, depth - 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind == "object" and depth:
        return _example(schema, document, depth - 1)
    if kind == "array" and depth and isinstance(schema.get("items"), Mapping):
        return [_example_value(schema["items"], document, depth - 1)]
    if kind in ("integer", "number") and isinstance(schema.get("minimum"), int | float):
        return schema["minimum"]
    return _EXAMPLES.get(kind, "text") if isinstance(kind, str) else "text"


def _json(value: Any) -> str:
    return exact_json.spelled(json.dumps(value, ensure_ascii=False))
