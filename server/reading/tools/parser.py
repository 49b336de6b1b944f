"""Finds tool calls in text that arrives in pieces."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from server.reading.events import CallArguments, CallStart, Content
from server.reading.tools.argument_readers import BracesReader, PairsReader, ParametersReader
from server.reading.tools.call_reader import CallReader
from server.reading.tools.formats import CallFormat
from server.reading.tools.header_reader import HeaderReader
from server.reading.tools.json_reader import JsonReader

Event = Content | CallStart | CallArguments


def new_call_id(form: CallFormat) -> str:
    """An id as OpenAI's look, or as long as the model's template wants it."""
    alphabet = string.ascii_letters + string.digits
    drawn = "".join(secrets.choice(alphabet) for _ in range(form.id_length))
    return drawn if form.id_length < 20 else f"call_{drawn}"


class ToolParser:
    """The events do not depend on how the text was cut, but for how content and arguments are cut in turn.

    What looks like a call and is not (unknown function, broken before its arguments began) comes back as content,
    marks included, so no text is lost. Whitespace between calls, and between content and a call, is layout, left out.
    """

    def __init__(
        self, form: CallFormat, functions: Mapping[str, Any], new_id: Callable[[CallFormat], str] = new_call_id
    ) -> None:
        """`functions`: the schema of each function's arguments, by its name."""
        self._form = form
        self._functions = functions
        self._new_id = new_id
        self._openers = tuple(filter(None, (form.opener, *form.also)))
        self._begin, self._end = form.section or ("", "")
        self._where: Literal["start", "text", "section", "opened", "call", "after", "closing"]
        self._where = "start" if form.bare else "text"
        self._listed = False  # whether calls stand in a list
        self._pending = ""  # what has been read of something that may be a call
        self._space = ""  # whitespace that is content if content follows
        self._mark = ""  # what has been read of a mark
        self._reader = reader_of(form, functions)
        self._started = False  # whether the call being read has been reported
        self._follows_call = False  # whether no content has come since the last call
        self._events: list[Event] = []
        self.num_calls = 0

    def feed(self, text: str) -> list[Event]:
        for character in text:
            self._step(character)
        return self._take()

    def finish(self, *, cut: bool = False) -> list[Event]:
        """What was held back. The text is over; `cut`: not by the model's own will.

        A call that is not certain by now is none, but for one that was cut after its name.
        """
        if self._where == "call":
            self._reader.cut()
            if cut and not self._started and self._reader.found is not None:
                self._start_call(self._reader.found)
        if self._started:
            self._pending = ""
        elif self._where in ("after", "closing") or (cut and self._follows_call):
            self._pending = self._mark = ""  # half a closer, or what came of a further call before its name
        self._content(self._pending)
        self._content(self._mark)
        self._pending = self._mark = ""
        if not self._follows_call:
            self._flush_space()
        return self._take()

    def _take(self) -> list[Event]:
        if self._started:
            self._arguments()
        events, self._events = self._events, []
        return events

    def _step(self, character: str) -> None:
        match self._where:
            case "call":
                self._in_call(character)
            case "section" | "opened":
                self._before_call(character)
            case "after" | "closing":
                self._after_call(character)
            case _:
                self._in_text(character)

    def _in_text(self, character: str) -> None:
        if self._where == "start" and not self._mark:
            if character == "{":
                self._open_call(character)
                return
            if not character.isspace():
                self._where = "text"
        self._mark += character
        marks = [*self._openers, *self._form.hidden]
        marks += [self._begin] if self._begin else []
        marks += [self._end] if self._end and self._follows_call else []
        while self._mark and not any(mark.startswith(self._mark) for mark in marks):
            self._content(self._mark[0])
            self._mark = self._mark[1:]
        if self._mark not in marks:
            return
        mark, self._mark = self._mark, ""
        if mark == self._end or mark in self._form.hidden:
            return
        self._pending += mark
        self._where = "section" if mark == self._begin else "opened"
        self._listed = False

    def _before_call(self, character: str) -> None:
        """Between a mark (or a separator) and a call."""
        if self._where == "section":
            self._mark += character
            if self._mark in self._openers:
                self._where = "opened"
            elif any(opener.startswith(self._mark) for opener in self._openers):
                return
            elif not self._mark.isspace():
                mark, self._mark = self._mark, ""
                self._no_call()
                for held in mark:
                    self._in_text(held)
                return
            self._pending += self._mark
            self._mark = ""
        elif character.isspace():
            self._pending += character
        elif self._form.array and not self._listed and character == "[":
            self._pending += character
            self._listed = True
        elif self._form.style != "json" or character == "{":
            self._open_call(character)
        else:
            self._no_call()
            self._in_text(character)

    def _open_call(self, character: str) -> None:
        self._reader = reader_of(self._form, self._functions)
        self._where = "call"
        self._in_call(character)

    def _in_call(self, character: str) -> None:
        verdict = self._reader.feed(character)
        if not self._started:
            self._pending += character
            if self._reader.name is not None:
                self._start_call(self._reader.name)
        if verdict == "more":
            return
        if self._started:
            self._arguments()
            self._started = False
            # The end of a call by pairs is its closer.
            self._where = "after" if self._form.style != "pairs" or verdict == "broken" else "text"
            if verdict == "broken":
                for held in self._reader.unread:
                    self._step(held)
        else:
            self._no_call()

    def _start_call(self, name: str) -> None:
        self._events.append(CallStart(self.num_calls, self._reader.id or self._new_id(self._form), name))
        self.num_calls += 1
        self._started = self._follows_call = True
        self._pending = self._space = ""

    def _arguments(self) -> None:
        fragment = self._reader.take_fragment()
        if fragment:
            self._events.append(CallArguments(self.num_calls - 1, fragment))

    def _after_call(self, character: str) -> None:
        """After a call: the end of its list, a closer, a separator, or something that is none of them."""
        closer = self._form.closer
        if not self._mark and character.isspace():
            self._space += character
        elif self._listed and self._where == "after" and character == "]":
            self._where = "closing"
        elif self._listed and self._where == "after" and character == ",":
            self._separated(character)
        elif closer.startswith(self._mark + character):
            self._mark += character
            if self._mark == closer:
                self._mark = self._space = ""
                self._where = "text"
        elif not self._mark and character in self._form.separators:
            self._separated(character)
        elif not self._mark and self._form.bare and character == "{":
            self._open_call(character)
        else:
            mark, self._mark = self._mark, ""
            self._where = "text"
            for held in mark + character:
                self._in_text(held)

    def _separated(self, character: str) -> None:
        self._pending = self._space + character
        self._space = ""
        self._where = "opened"

    def _no_call(self) -> None:
        pending, self._pending = self._pending, ""
        self._where = "text"
        self._content(pending)

    def _content(self, text: str) -> None:
        """Adds text, holding back the whitespace at its end."""
        body = text.rstrip()
        if not body:
            self._space += text
            return
        self._flush_space()
        self._emit(body)
        self._space = text[len(body) :]

    def _flush_space(self) -> None:
        space, self._space = self._space, ""
        self._emit(space)

    def _emit(self, text: str) -> None:
        if not text:
            return
        self._follows_call = False
        last = self._events[-1] if self._events else None
        if isinstance(last, Content):
            self._events[-1] = Content(last.text + text)
        else:
            self._events.append(Content(text))


@dataclass(slots=True)
class ParsedCall:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """`content` is None if there is none, as OpenAI has it beside tool calls."""

    content: str | None
    calls: list[ParsedCall]


def parse(
    form: CallFormat,
    functions: Mapping[str, Any],
    text: str,
    new_id: Callable[[CallFormat], str] = new_call_id,
    *,
    cut: bool = False,
) -> Parsed:
    """A whole answer at once: what the events of ToolParser add up to."""
    parser = ToolParser(form, functions, new_id)
    return collect([*parser.feed(text), *parser.finish(cut=cut)])


def collect(events: list[Event]) -> Parsed:
    """Adds events up."""
    content = "".join(event.text for event in events if isinstance(event, Content))
    calls: list[ParsedCall] = []
    for event in events:
        if isinstance(event, CallStart):
            calls.append(ParsedCall(event.id, event.name, ""))
        elif isinstance(event, CallArguments):
            calls[event.index].arguments += event.text
    return Parsed(content or None, calls)


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
