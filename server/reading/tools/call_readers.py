"""Readers of one call each, fed character by character, for the ways in which calls are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from server.reading.tools.argument_readers import BracesReader, PairsReader, ParametersReader
from server.reading.tools.formats import CallFormat
from server.reading.tools.header_reader import HeaderReader
from server.reading.tools.reader import JsonReader, Verdict


class CallReader(Protocol):
    """Reads one call, from its first character on.

    `name` is set from where the call is certain on; `found` as soon as a name was read, that of a known function.
    `id`: what the model itself calls it. `unread`: after "broken", what was read beyond the call's end.
    """

    name: str | None
    found: str | None
    id: str | None
    unread: str

    def feed(self, character: str) -> Verdict:
        """ "call": that was its last character; "broken": it was no call, or, if certain, has ended before `unread`."""

    def take_fragment(self) -> str:
        """Arguments read since the last time, as JSON or a piece of it."""

    def cut(self) -> None:
        """The text is over: what was held back of the arguments becomes part of the fragment."""


def reader_of(form: CallFormat, functions: Mapping[str, Any]) -> CallReader:
    """`functions`: the schema of each function's arguments, by its name."""
    match form.style:
        case "json":
            return JsonReader(functions)
        case "header":
            return HeaderReader(form, functions)
        case "parameters":
            return ParametersReader(functions)
        case "pairs":
            return PairsReader(functions)
        case "braces":
            return BracesReader(functions, form.quote)
        case "channels":
            raise ValueError("messages in channels are read by server.reading.harmony")
