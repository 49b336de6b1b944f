"""What every reader of a call has in common, whatever way the call is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

Verdict = Literal["more", "call", "broken"]


class CallReader(ABC):
    """Reads one call, from its first character on.

    `name` is set once the call is certain; `found` as soon as a name was read, that of a known function. `id`: what
    the model itself calls it. `unread`: after "broken", what was read beyond the call's end.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.found: str | None = None
        self.id: str | None = None
        self.unread = ""
        self._fragment: list[str] = []

    @abstractmethod
    def feed(self, character: str) -> Verdict:
        """ "call": that was its last character; "broken": it was no call, or, if certain, has ended before `unread`."""

    def take_fragment(self) -> str:
        """Arguments read since the last time, as JSON or a piece of it."""
        fragment = "".join(self._fragment)
        self._fragment.clear()
        return fragment

    @abstractmethod
    def cut(self) -> None:
        """The text is over: what was held back of the arguments becomes part of the fragment."""


class Brackets:
    """Finds the end of a JSON object or list, be it valid JSON or not, by its brackets and quotes alone."""

    def __init__(self) -> None:
        self.depth = 0
        self.quoted = False
        self._escaped = False

    def read(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self.quoted:
            self._escaped = character == "\\"
            self.quoted = character != '"'
        elif character == '"':
            self.quoted = True
        elif character in "{[":
            self.depth += 1
        elif character in "}]":
            self.depth -= 1

    def ends_with(self, character: str) -> bool:
        """Whether this character, the first of them a bracket, closes the outermost bracket."""
        self.read(character)
        return self.depth == 0 and not self.quoted
