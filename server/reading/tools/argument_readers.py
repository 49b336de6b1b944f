"""Reads calls whose arguments are no JSON (Qwen3-Coder, GLM, Gemma), and makes JSON of them as they arrive."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import Any
from urllib.parse import unquote

from server.reading.tools.call_reader import CallReader, Verdict
from server.reading.tools.choice import MAX_NAME_LENGTH, NAME_CHARACTERS
from server.text import exact_json

_KINDS: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    dict: "object",
    list: "array",
}
_WORDS = {"True": "true", "False": "false", "None": "null"}

Steps = Generator[None, str, Verdict]
Step = Generator[None, str, str]
Writing = Generator[None, str, None]


class _Broken(Exception):
    """What was read is not what must come; it says how much of it was read beyond the call's end."""

    def __init__(self, unread: str) -> None:
        super().__init__(unread)
        self.unread = unread


class _ArgumentReader(CallReader):
    """A generator that is sent the characters.

    Once certain, a call that goes on as none should ends there: its arguments are closed.
    """

    def __init__(self, functions: Mapping[str, Any]) -> None:
        super().__init__()
        self._functions = functions
        self._raw: list[str] = []  # the text so far of a value whose kind only its end reveals
        self._keys = 0
        self._steps = self._guarded()
        next(self._steps)

    def feed(self, character: str) -> Verdict:
        try:
            self._steps.send(character)
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict
        return "more"

    def cut(self) -> None:
        self._fragment += self._raw
        self._raw.clear()

    def _read(self) -> Steps:
        raise NotImplementedError

    def _guarded(self) -> Steps:
        try:
            return (yield from self._read())
        except _Broken as broken:
            self.unread = broken.unread
            if self.name is not None:
                self._fragment.append("}")
            return "broken"

    def _known(self, name: str, character: str) -> None:
        if name not in self._functions:
            raise _Broken(character)
        self.found = name

    def _start(self) -> None:
        self.name = self.found
        self._fragment.append("{")

    def _key(self, key: str) -> None:
        self._fragment.append(f"{', ' if self._keys else ''}{_quoted(key)}: ")
        self._keys += 1

    def _value(self, key: str, closer: str, *, lines: bool) -> Writing:
        """Reads up to `closer` and writes the value as JSON. `lines`: a line end at either side is layout."""
        allowed = self._kinds_of(key)
        text = allowed == {"string"}
        held = ""  # what may be the closer's beginning
        space = ""  # a line end that is layout if the closer follows
        first = lines
        if text:
            self._fragment.append('"')
        while held != closer:
            held += yield
            while not closer.startswith(held):
                character, held = held[0], held[1:]
                ends_line = lines and character == "\n"
                if not (first and ends_line):
                    read = space if ends_line else space + character
                    space = "\n" if ends_line else ""
                    if text:
                        self._fragment.append(_quoted(read)[1:-1])
                    else:
                        self._raw.append(read)
                first = False
        if text:
            self._fragment.append('"')
        else:
            self._fragment.append(_as_json("".join(self._raw), allowed))
            self._raw.clear()

    def _kinds_of(self, key: str) -> set[str]:
        parameters = self._functions.get(self.name or "")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        return kinds(properties.get(key), parameters) if isinstance(properties, Mapping) else set()


class ParametersReader(_ArgumentReader):
    """<function=name> <parameter=key>\\nvalue\\n</parameter> … </function>, as Qwen3-Coder writes it."""

    def _read(self) -> Steps:
        yield from _literal("<function=", (yield from _after_space()))
        name = yield from _until(">", limit=MAX_NAME_LENGTH)
        self._known(name, ">")
        self._start()
        while True:
            mark = yield from _one_of(("<parameter=", "</function>"))
            if mark == "</function>":
                self._fragment.append("}")
                return "call"
            key = yield from _until(">")
            self._key(key)
            yield from self._value(key, "</parameter>", lines=True)


class PairsReader(_ArgumentReader):
    """name <arg_key>key</arg_key> <arg_value>value</arg_value> …, as GLM writes it."""

    def _read(self) -> Steps:
        name = yield from _after_space()
        while (character := (yield)) in NAME_CHARACTERS and len(name) <= MAX_NAME_LENGTH:
            name += character
        self._known(name, character)
        ends = ("<arg_key>", "</tool_call>")
        mark = yield from _one_of(ends, character)
        self._start()
        while mark != "</tool_call>":
            key = yield from _until("</arg_key>")
            yield from _literal("<arg_value>", (yield from _after_space()))
            self._key(key)
            yield from self._value(key, "</arg_value>", lines=False)
            mark = yield from _one_of(ends)
        self._fragment.append("}")
        return "call"


class BracesReader(_ArgumentReader):
    """call:name{key:value,…}: JSON but for keys without quotes and marks for quotes, as Gemma writes it."""

    def __init__(self, functions: Mapping[str, Any], quote: str) -> None:
        self._quote = quote
        super().__init__(functions)

    def _read(self) -> Steps:
        yield from _literal("call:", (yield from _after_space()))
        name = yield from _until("{", limit=MAX_NAME_LENGTH)
        self._known(name, "{")
        self._start()
        within = ["{"]
        last = "{"  # of the brackets, colons and commas
        word = ""  # a key, number or name without quotes, or the beginning of the mark for quotes
        while within:
            character = yield
            if word + character == self._quote or (not word and character == '"'):
                self._raw.clear()
                yield from self._string(self._quote if word else '"')
                word = ""
            elif self._quote.startswith(word + character) or character not in ",:{}[] \n\t":
                word += character
                value = last in ":[" or (last == "," and within[-1] == "[")
                self._raw = [word] if value and word[0] in "-0123456789tfn" else []
            else:
                self._raw.clear()
                if word:
                    self._fragment.append(_quoted(word) if character == ":" else _as_json(word, set()))
                word = ""
                self._fragment.append(f"{character} " if character in ",:" else character)
                last = last if character.isspace() else character
                if character in "{[":
                    within.append(character)
                elif character in "}]":
                    within.pop()
        return "call"

    def _string(self, quote: str) -> Writing:
        self._fragment.append('"')
        held = ""
        while held != quote:
            held += yield
            while not quote.startswith(held):
                self._fragment.append(_quoted(held[0])[1:-1])
                held = held[1:]
        self._fragment.append('"')


def kinds(schema: Any, document: Any, depth: int = 8) -> set[str]:
    """The JSON types that a schema of `document` names; empty if it does not say."""
    if not isinstance(schema, Mapping) or not depth:
        return set()
    named = schema.get("type")
    if isinstance(named, str):
        return {named}
    if isinstance(named, list):
        return {kind for kind in named if isinstance(kind, str)}
    if isinstance(schema.get("enum"), list):
        return {_KINDS.get(type(value), "null") for value in schema["enum"]}
    if "const" in schema:
        return {_KINDS.get(type(schema["const"]), "null")}
    if isinstance(schema.get("$ref"), str):
        return kinds(pointed_at(schema["$ref"], document), document, depth - 1)
    for keyword in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(keyword)
        if isinstance(branches, list) and branches:
            found = [kinds(branch, document, depth - 1) for branch in branches]
            if keyword == "allOf":
                return set.intersection(*(one for one in found if one)) if any(found) else set()
            return set().union(*found) if all(found) else set()
    return set()


def pointed_at(reference: str, document: Any) -> Any:
    """What a reference within the document (#/$defs/…) leads to; None if it leads nowhere."""
    steps = reference.removeprefix("#").split("/")[1:]
    for step in steps:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def _as_json(raw: str, allowed: set[str]) -> str:
    """The value that `raw` is, as JSON: as it stands if it is JSON of a kind allowed, else as a string."""
    text = raw.strip()
    text = _WORDS.get(text, text)
    try:
        kind = _KINDS.get(type(exact_json.loads(text)), "null")
    except ValueError:
        return _quoted(raw)
    fits = not allowed or kind in allowed or (kind == "integer" and "number" in allowed) or "string" not in allowed
    return text if fits else _quoted(raw)


def _quoted(text: str) -> str:
    return exact_json.spelled(json.dumps(text, ensure_ascii=False))


def _after_space() -> Step:
    """The first character that is no whitespace."""
    while (character := (yield)).isspace():
        pass
    return character


def _literal(text: str, first: str) -> Step:
    """Exactly this text, `first` being what came of it."""
    return (yield from _one_of((text,), first))


def _one_of(texts: tuple[str, ...], first: str = "") -> Step:
    """One of these texts, after whitespace. `first`: what came before."""
    read = first
    while not read or read.isspace():
        read = yield
    while read not in texts:
        if not any(text.startswith(read) for text in texts):
            raise _Broken(read)
        read += yield
    return read


def _until(end: str, limit: int = 4096) -> Step:
    """The text before `end`."""
    text = ""
    while not text.endswith(end):
        if len(text) > limit + len(end):
            raise _Broken(text)
        text += yield
    return text[: -len(end)]
