"""Reads a call whose name stands in front of its arguments' JSON (DeepSeek, Kimi, Mistral v11)."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Literal

from server.reading.tools.call_reader import Brackets, CallReader, Verdict
from server.reading.tools.choice import MAX_NAME_LENGTH, NAME_CHARACTERS
from server.reading.tools.formats import CallFormat

_NUMBERED = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?", re.DOTALL)
_MAX_WRITTEN = MAX_NAME_LENGTH + 32


class HeaderReader(CallReader):
    """Certain from the brace that opens the arguments on."""

    def __init__(self, form: CallFormat, names: Container[str]) -> None:
        super().__init__()
        self._form = form
        self._names = names
        self._where: Literal["before", "name", "after", "brace", "arguments"] = "before" if form.before else "name"
        self._mark = ""
        self._written = ""
        self._brackets = Brackets()

    def cut(self) -> None:
        """Nothing is held back."""

    def feed(self, character: str) -> Verdict:
        self.unread = character
        if self._where == "arguments":
            return self._argument(character)
        if self._where == "name":
            return self._name(character)
        if not self._mark and character.isspace():
            return "more"
        if self._where == "brace":
            if character != "{":
                return "broken"
            self.name = self.found
            self._where = "arguments"
            return self._argument(character)
        return self._literal(character)

    def _argument(self, character: str) -> Verdict:
        self._fragment.append(character)
        return "call" if self._brackets.ends_with(character) else "more"

    def _literal(self, character: str) -> Verdict:
        self._mark += character
        wanted = self._form.before if self._where == "before" else self._form.after
        if not wanted.startswith(self._mark):
            return "broken"
        if self._mark == wanted:
            self._mark = ""
            self._where = "name" if self._where == "before" else "brace"
        return "more"

    def _name(self, character: str) -> Verdict:
        if character in NAME_CHARACTERS and len(self._written) < _MAX_WRITTEN:
            self._written += character
            return "more"
        if not self._written and character.isspace():
            return "more"
        name = self._written
        if self._form.id_in_name and (parts := _NUMBERED.fullmatch(name)):
            self.id = name
            name = parts[1]
        if name not in self._names:
            return "broken"
        self.found = name
        self._where = "after" if self._form.after else "brace"
        return self.feed(character)
