"""Grammars under which a model can only call tools, or holds to a form once it has thought.

They are structural tags as xgrammar defines them (https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from protocol.messages import Grammar
from server.reading.reasoning import ReasoningFormat, Start
from server.reading.tools.choice import Function, ToolUse
from server.reading.tools.formats import CallFormat

Format = dict[str, Any]


def call_grammar(form: CallFormat, use: ToolUse, start: int, special_ids: Mapping[str, int]) -> Grammar:
    """One call of one of `use.functions`, or one and more where parallel calls are allowed.

    `start` is the token index where the answer begins. `special_ids` are the vocabulary's special tokens: an opener
    among them is demanded by its id, since special tokens are no text to a grammar.
    """
    return Grammar(
        type="structural_tag",
        value=json.dumps({"type": "structural_tag", "format": call_format(form, use, special_ids)}),
        start=start,
    )


def call_or(grammar: Grammar, form: CallFormat, use: ToolUse, special_ids: Mapping[str, int]) -> Grammar:
    """Calls as call_grammar has them, or else what `grammar` permits."""
    either = {"type": "or", "elements": [call_format(form, use, special_ids), as_format(grammar)]}
    return Grammar(
        type="structural_tag",
        value=json.dumps({"type": "structural_tag", "format": either}),
        start=grammar.start,
    )


def call_format(form: CallFormat, use: ToolUse, special_ids: Mapping[str, int]) -> Format:
    """The structural tag's format alone, to be put into another."""
    if form.array:
        tags = [_tag(form, function, "", "") for function in use.functions]
        return _sequence(
            _mark(form.opener, special_ids), _text("["), _calls(tags, ", ", use.parallel), _text(form.closer)
        )
    if form.bare:
        return _calls([_tag(form, function, "", "") for function in use.functions], "; ", use.parallel)
    tags = [_tag(form, function, f"{form.opener}\n", f"\n{form.closer}") for function in use.functions]
    return _calls(tags, "\n", use.parallel)


def _tag(form: CallFormat, function: Function, before: str, after: str) -> Format:
    return {
        "type": "tag",
        "begin": f'{before}{{"name": "{function.name}", "{form.arguments}": ',
        "content": {"type": "json_schema", "json_schema": dict(function.parameters)},
        "end": "}" + after,
    }


def _calls(tags: list[Format], separator: str, parallel: bool) -> Format:
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }


def _mark(opener: str, special_ids: Mapping[str, int]) -> Format:
    return {"type": "token", "token": special_ids[opener]} if opener in special_ids else _text(opener)


def _text(value: str) -> Format:
    return {"type": "const_string", "value": value}


def _sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def after_reasoning(grammar: Grammar, form: ReasoningFormat, start: Start, special_ids: Mapping[str, int]) -> Grammar:
    """The same grammar from the end of the thought on, as a structural tag; before it, any text.

    Outside of a thought the model may open one or answer at once. `special_ids` are the vocabulary's special tokens.
    """
    if start == "closed":
        return grammar
    thought: dict[str, Any] = {
        "type": "tag",
        "begin": "" if start == "inside" else _begin_or_end(form.opener, special_ids),
        "content": {"type": "any_text"},
        "end": _begin_or_end(form.closer, special_ids),
    }
    space = {"type": "regex", "pattern": r"\n{0,2}"}
    thinking: dict[str, Any] = {"type": "sequence", "elements": [thought, space]}
    if start == "outside":
        thinking = {"type": "optional", "content": thinking}
    whole = {"type": "sequence", "elements": [thinking, as_format(grammar)]}
    value = json.dumps({"type": "structural_tag", "format": whole})
    return Grammar(type="structural_tag", value=value, start=grammar.start)


def _begin_or_end(tag: str, special_ids: Mapping[str, int]) -> str | dict[str, Any]:
    return {"type": "token", "token": special_ids[tag]} if tag in special_ids else tag


def as_format(grammar: Grammar) -> dict[str, Any]:
    """The grammar as a part of a structural tag (https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html)."""
    match grammar.type:
        case "json_object":
            return {"type": "json_schema", "json_schema": {"type": "object", "additionalProperties": True}}
        case "json_schema":
            return {"type": "json_schema", "json_schema": json.loads(grammar.value)}
        case "regex":
            return {"type": "regex", "pattern": grammar.value}
        case "choice":
            options = [{"type": "const_string", "value": text} for text in json.loads(grammar.value)]
            return {"type": "or", "elements": options}
        case "grammar":
            return {"type": "grammar", "grammar": grammar.value}
        case "structural_tag":
            inner: dict[str, Any] = json.loads(grammar.value)["format"]
            return inner
