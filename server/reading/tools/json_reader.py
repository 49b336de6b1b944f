"""Reads one call, {"name": …, "arguments": {…}}, as its characters arrive."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any, Literal

from server.reading.tools.call_reader import Brackets, CallReader, Verdict
from server.text import exact_json

ARGUMENT_KEYS = ("arguments", "parameters")
NAME_KEYS = ("name", "tool_name")
KEYS = frozenset({*NAME_KEYS, "type", "id", "tool_call_id", *ARGUMENT_KEYS})

_LITERALS = frozenset("-+.eE0123456789truefalsn")


class JsonReader(CallReader):
    """Fed from "{" on.

    A call is certain once its name, that of a known function, and the brace that opens its arguments have been read
    (`name` is set from then on): what follows goes to `fragment`, as the model wrote it, until the arguments' braces
    balance, be it valid JSON or not, as OpenAI passes on what its models write. A call with its keys in another order
    is certain at its last brace. Until it is certain it may turn out to be "broken": any other JSON object is.
    """

    def __init__(self, names: Container[str]) -> None:
        super().__init__()
        self._names = names
        self._text: list[str] = []
        self._brackets = Brackets()
        self._member: list[str] = []  # of the outermost object, the member that is being read
        self._expect: Literal["key", "colon", "value", "comma"] = "key"
        self._key = ""
        self._in_arguments = self._arguments_done = self._had_arguments = False

    def cut(self) -> None:
        """Arguments that came before the name count if they are whole."""
        if self.name is None and self._had_arguments and not self._brackets.quoted and self._brackets.depth == 1:
            self._text.append("}")
            self._judge()

    def feed(self, character: str) -> Verdict:
        self.unread = character
        if not self._arguments_done:
            self._text.append(character)
        verdict = self._step(character)
        if verdict == "call" and self.name is None:
            return self._judge()
        return verdict

    def _step(self, character: str) -> Verdict:
        brackets = self._brackets
        if brackets.depth > 1 or brackets.quoted:
            return self._inside(character)
        if brackets.depth == 0:
            brackets.read(character)
            return "more" if character == "{" else "broken"
        if character.isspace():
            return self._end_literal()
        if character == "}":
            if self._end_literal() == "broken" or self._expect == "colon" or self._expect == "value":
                return "broken"
            brackets.read(character)
            return "call"
        if character == ",":
            if self._end_literal() == "broken" or self._expect != "comma":
                return "broken"
            self._expect = "key"
            return "more"
        if character == ":":
            if self._expect != "colon":
                return "broken"
            self._expect = "value"
            return "more"
        return self._begin(character)

    def _begin(self, character: str) -> Verdict:
        """The first character of a key or value, or a further one of a number or word."""
        if self._expect not in ("key", "value") or (self._expect == "key" and character != '"'):
            return "broken"
        if self._member and character not in _LITERALS:
            return "broken"
        if character in "{[":
            certain = self.found is not None and self._key in ARGUMENT_KEYS and character == "{"
            if certain and self.name is None:
                self.name = self.found
                self._in_arguments = True
                self._fragment.append(character)
        elif character != '"' and character not in _LITERALS:
            return "broken"
        self._brackets.read(character)
        self._member.append(character)
        return "more"

    def _inside(self, character: str) -> Verdict:
        """A character of a string, or of an object or list further in."""
        (self._fragment if self._in_arguments else self._member).append(character)
        self._brackets.read(character)
        if self._brackets.depth == 1 and not self._brackets.quoted:
            return self._end_member()
        return "more"

    def _end_literal(self) -> Verdict:
        return self._end_member() if self._member else "more"

    def _end_member(self) -> Verdict:
        text = "".join(self._member)
        self._member.clear()
        if self._in_arguments:
            self._in_arguments = False
            self._arguments_done = True
            self._expect = "comma"
            return "more"
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return "broken"
        if self._expect == "key":
            self._key = value
            self._expect = "colon"
            return "more" if self.name is not None or value in KEYS else "broken"
        self._expect = "comma"
        self._had_arguments |= self._key in ARGUMENT_KEYS
        if self._key in NAME_KEYS and self.name is None:
            if not isinstance(value, str) or value not in self._names:
                return "broken"
            self.found = value
        return "more"

    def _judge(self) -> Verdict:
        """A whole object whose arguments did not come last, or are no object."""
        try:
            call: dict[str, Any] = exact_json.loads("".join(self._text))
        except ValueError:
            return "broken"
        key = next((key for key in ARGUMENT_KEYS if key in call), None)
        arguments = self._as_text(call[key]) if key is not None else "{}"
        if self.found is None or arguments is None:
            return "broken"
        self.name = self.found
        self._fragment.append(arguments)
        return "call"

    @staticmethod
    def _as_text(arguments: Any) -> str | None:
        """Some models quote the arguments' JSON, some write null if a function has none."""
        if arguments is None:
            return "{}"
        if isinstance(arguments, dict):
            return exact_json.spelled(json.dumps(arguments, ensure_ascii=False))
        if isinstance(arguments, str):
            try:
                return exact_json.spelled(arguments) if isinstance(exact_json.loads(arguments), dict) else None
            except ValueError:
                return None
        return None
