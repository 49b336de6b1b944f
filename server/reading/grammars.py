"""Grammars under which a model can only call tools, or holds to a form once it has thought.

They are structural tags as xgrammar defines them (https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from protocol.messages import Grammar
from server.reading import harmony
from server.reading.reasoning import ReasoningFormat, Start
from server.reading.tools.choice import Function, ToolUse
from server.reading.tools.formats import GENERIC, CallFormat

Format = dict[str, Any]


def call_grammar(form: CallFormat, use: ToolUse, start: int, special_ids: Mapping[str, int]) -> Grammar:
    """One call of one of `use.functions`, or one and more where parallel calls are allowed.

    `start` is the token index where the answer begins. `special_ids` are the vocabulary's special tokens: an opener
    among them is demanded by its id, since special tokens are no text to a grammar.
    """
    return _whole(call_format(form, use, special_ids), start)


def call_or(grammar: Grammar, form: CallFormat, use: ToolUse, special_ids: Mapping[str, int]) -> Grammar:
    """Calls as call_grammar has them, or else what `grammar` says."""
    other = as_format(grammar)
    if form.style == "channels":
        other = _final(other, special_ids)
    return _whole(_either([call_format(form, use, special_ids), other]), grammar.start)


def in_final(grammar: Grammar, special_ids: Mapping[str, int]) -> Grammar:
    """The same as a message of harmony's channel for what the user reads."""
    return _whole(_final(as_format(grammar), special_ids), grammar.start)


def _final(content: Format, special_ids: Mapping[str, int]) -> Format:
    channel, message = (_spelled(mark, special_ids) for mark in (harmony.CHANNEL, harmony.MESSAGE))
    return _sequence(*channel, _text("final"), *message, content)


def auto_grammar(
    form: CallFormat, use: ToolUse, start: int, special_ids: Mapping[str, int], *, held: Collection[str]
) -> Grammar | None:
    """Any text, in which a call that has begun is held to its form, and its arguments to the schema.

    The schemas are those of the functions named in `held`; the others take any object. None if nothing would be
    held: the text is free then. In a form without marks the first character decides, be there whitespace before it
    or not: `{` opens a call. Beside the mark that opens a call in other forms, all text stays free.
    """
    if not held and form.name != GENERIC:
        return None
    any_object = {"type": "object"}
    functions = tuple(f if f.name in held else replace(f, parameters=any_object) for f in use.functions)
    use = replace(use, functions=functions)
    if form.bare:
        return _whole(_bare(form, use, special_ids), start)
    if form.style == "channels":
        return _whole(
            _either([call_format(form, use, special_ids), _final({"type": "any_tokens"}, special_ids)]), start
        )
    if form.opener in special_ids:
        tag = _tag(form, form.opener, use, special_ids)
        return _whole(
            {"type": "token_triggered_tags", "trigger_tokens": [special_ids[form.opener]], "tags": [tag]}, start
        )
    openers = [opener for opener in (form.opener, *form.also) if opener not in special_ids]
    tags = [_tag(form, opener, use, special_ids) for opener in openers]
    return _whole({"type": "triggered_tags", "triggers": openers, "tags": tags}, start)


def _bare(form: CallFormat, use: ToolUse, special_ids: Mapping[str, int]) -> Format:
    """Calls, or text. Once the opener has been written, be it in mid-text, there is nothing but calls."""
    calls = call_format(form, use, special_ids)
    marked: Format | None = None
    text: Format = {"type": "any_tokens"}
    if form.opener:
        marked = _sequence(*_spelled(form.opener, special_ids), calls)
        text = (
            {"type": "any_tokens", "exclude_tokens": [special_ids[form.opener]]}
            if form.opener in special_ids
            else {"type": "any_text", "excludes": [form.opener]}
        )
    words = _sequence({"type": "regex", "pattern": r"[^{\s]"}, text)
    if marked is not None:
        words = _either([_sequence(words, _optional(marked)), marked])
    return _sequence({"type": "regex", "pattern": r"\s*"}, _either([calls, _optional(words)]))


def call_format(form: CallFormat, use: ToolUse, special_ids: Mapping[str, int]) -> Format:
    """The structural tag's format alone, to be put into another."""
    content = _framed(form, use, special_ids)
    if form.bare:
        return content
    call = [*_spelled(form.opener, special_ids), content, *_spelled(form.closer, special_ids)]
    if form.array or form.style == "channels":
        return _sequence(*call)
    if form.section is not None:
        begin, end = (_spelled(mark, special_ids) for mark in form.section)
        return _sequence(*begin, _repeated(call, use.parallel), *end)
    layout = [] if form.style in ("header", "braces") else [_text("\n")]
    more = {"type": "star", "content": _sequence(*layout, *call)}
    return _sequence(*call, more) if use.parallel else _sequence(*call)


def _repeated(call: list[Format], parallel: bool) -> Format:
    return {"type": "plus", "content": _sequence(*call)} if parallel else _sequence(*call)


def _tag(form: CallFormat, opener: str, use: ToolUse, special_ids: Mapping[str, int]) -> Format:
    """From one opener to its closer. Before free text, a list must end in the tag's end rather than in its content."""
    content, end = _framed(form, use, special_ids), _begin_or_end(form.closer, special_ids)
    if form.array and isinstance(end, str):
        content, end = _sequence(*content["elements"][:-1]), f"]{end}"
    return {"type": "tag", "begin": _begin_or_end(opener, special_ids), "content": content, "end": end}


def _framed(form: CallFormat, use: ToolUse, special_ids: Mapping[str, int]) -> Format:
    """What stands between one opener and its closer."""
    calls = [_call(form, function, special_ids) for function in use.functions]
    if form.array or form.bare:
        separator = ", " if form.array else form.separators[:1] + " " if form.separators else "\n"
        tags = [{"type": "tag", "begin": "", "content": call, "end": "}"} for call in calls]
        several = _calls(tags, separator, use.parallel)
        return _sequence(_text("["), several, _text("]")) if form.array else several
    return _either(calls)


def _call(form: CallFormat, function: Function, special_ids: Mapping[str, int]) -> Format:
    """One call without its marks; in a list, without its last brace."""
    schema: Format = {"type": "json_schema", "json_schema": dict(function.parameters)}
    match form.style:
        case "json":
            number = [_text('{"tool_call_id": "'), _NUMBER, _text('", ')] if form.name == "command_a" else [_text("{")]
            name = _text(f'"{form.name_key}": "{function.name}", "{form.arguments}": ')
            if form.array or form.bare:
                return _sequence(*number, name, schema)
            return _sequence(_text("\n"), *number, name, schema, _text("}\n"))
        case "header":
            before = _spelled(f"{form.before}{'functions.' if form.id_in_name else ''}{function.name}", special_ids)
            number = [_text(":"), _NUMBER] if form.id_in_name else []
            if form.after != "```json":
                return _sequence(*before, *number, *_spelled(form.after, special_ids), schema)
            return _sequence(*before, _text("\n```json\n"), schema, _text("\n"))
        case "channels":
            recipient = _text(f"commentary to=functions.{function.name} ")
            kind = [*_spelled(harmony.CONSTRAIN, special_ids), _text("json"), *_spelled(harmony.MESSAGE, special_ids)]
            return _sequence(recipient, *kind, schema)
        case "parameters":
            schema["style"] = "qwen_xml"
            return _sequence(_text(f"\n<function={function.name}>\n"), schema, _text("</function>\n"))
        case "pairs":
            schema["style"] = "glm_xml"
            return _sequence(_text(f"{function.name}\n"), schema)
        case "braces":
            schema |= {"style": "gemma", "quote": special_ids.get(form.quote, form.quote)}
            return _sequence(_text(f"call:{function.name}"), schema)
    raise ValueError(f"calls have no style {form.style}")


_NUMBER: Format = {"type": "regex", "pattern": "0|[1-9][0-9]{0,3}"}


def _calls(tags: list[Format], separator: str, parallel: bool) -> Format:
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }


def _spelled(text: str, special_ids: Mapping[str, int]) -> list[Format]:
    """A text as a grammar can demand it: special tokens in it by their ids."""
    marks = sorted((mark for mark in special_ids if mark and mark in text), key=len, reverse=True)
    parts = re.split("(" + "|".join(map(re.escape, marks)) + ")", text) if marks else [text]
    return [
        {"type": "token", "token": special_ids[part]} if part in special_ids else _text(part) for part in parts if part
    ]


def _text(value: str) -> Format:
    return {"type": "const_string", "value": value}


def _sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def _either(elements: list[Format]) -> Format:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}


def _optional(content: Format) -> Format:
    return {"type": "optional", "content": content}


def _whole(format: Format, start: int) -> Grammar:
    value = json.dumps({"type": "structural_tag", "format": format})
    return Grammar(type="structural_tag", value=value, start=start)


def after_reasoning(grammar: Grammar, form: ReasoningFormat, start: Start, special_ids: Mapping[str, int]) -> Grammar:
    """The same grammar from the end of the thought on, as a structural tag; before it, any text.

    Outside of a thought the model may open one or answer at once. `special_ids` are the vocabulary's special tokens.
    """
    if form.channels:
        return _whole(_sequence(_harmony_thoughts(special_ids), as_format(grammar)), grammar.start)
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
    return _whole(whole, grammar.start)


def _harmony_thoughts(special_ids: Mapping[str, int]) -> Format:
    """Any messages that are neither calls nor the answer, and the beginning of the next one."""
    begin = [*_spelled(harmony.CHANNEL, special_ids), _either([_text("analysis"), _text("commentary")])]
    text = {
        "type": "tag",
        "begin": _begin_or_end(harmony.MESSAGE, special_ids),
        "content": {"type": "any_text"},
        "end": _begin_or_end(harmony.ENDS[0], special_ids),
    }
    following = [*_spelled(harmony.START, special_ids), _text("assistant")]
    return {"type": "star", "content": _sequence(*begin, text, *following)}


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
