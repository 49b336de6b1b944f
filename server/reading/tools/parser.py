"""Finds tool calls in text that arrives in pieces."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from server.reading.tools.formats import CallFormat
from server.reading.tools.reader import CallReader


@dataclass(frozen=True, slots=True)
class Content:
    """Text that is not part of a call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """OpenAI's first delta of a call: index, id, type and function.name."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of function.arguments of call `index`."""

    index: int
    text: str


Event = Content | CallStart | CallArguments


def new_call_id(form: CallFormat) -> str:
    """An id as OpenAI's look, or as long as the model's template wants it."""
    alphabet = string.ascii_letters + string.digits
    drawn = "".join(secrets.choice(alphabet) for _ in range(form.id_length))
    return drawn if form.id_length < 20 else f"call_{drawn}"


class ToolParser:
    """The events do not depend on how the text was cut, but for how content and arguments are cut in turn.

    What looks like a call and is not (unknown function, broken JSON before its arguments began) comes back as content,
    marks included, so no text is lost. Whitespace between calls, and between content and a call, is layout, left out.
    """

    def __init__(
        self, form: CallFormat, names: Collection[str], new_id: Callable[[CallFormat], str] = new_call_id
    ) -> None:
        """`names`: the functions of the request's tools."""
        self._form = form
        self._names = frozenset(names)
        self._new_id = new_id
        self._where: Literal["start", "text", "opened", "array", "call", "after"] = "start" if form.bare else "text"
        self._pending = ""  # what has been read of something that may be a call
        self._space = ""  # whitespace that is content if content follows
        self._mark = ""  # what has been read of an opener or closer
        self._reader = CallReader(self._names)
        self._started = False  # whether the call that is being read has been reported
        self._follows_call = False  # whether no content has come since the last call
        self._events: list[Event] = []
        self.num_calls = 0

    def feed(self, text: str) -> list[Event]:
        for character in text:
            self._step(character)
        return self._take()

    def finish(self) -> list[Event]:
        """What was held back. The text is over: a call that is not certain by now is none."""
        if not self._started:
            self._content(self._pending)
        self._pending = ""
        self._content(self._mark)
        self._mark = ""
        if not self._follows_call:
            self._flush_space()
        return self._take()

    def _take(self) -> list[Event]:
        if self._started:
            self._arguments()
        events, self._events = self._events, []
        return events

    def _step(self, character: str) -> None:
        if self._where == "call":
            self._in_call(character)
        elif self._where in ("opened", "array"):
            self._before_call(character)
        elif self._where == "after":
            self._after_call(character)
        else:
            self._in_text(character)

    def _in_text(self, character: str) -> None:
        if self._where == "start" and not self._mark:
            if character == "{":
                self._open_call(character)
                return
            if not character.isspace():
                self._where = "text"
        opener = self._form.opener
        self._mark += character
        while self._mark and not opener.startswith(self._mark):
            self._content(self._mark[0])
            self._mark = self._mark[1:]
        if self._mark == opener:
            self._mark = ""
            self._pending += opener
            self._where = "array" if self._form.array else "opened"

    def _before_call(self, character: str) -> None:
        """Between an opener (or a separator) and a call."""
        if self._where == "array" and character == "[":
            self._pending += character
            self._where = "opened"
        elif self._where == "opened" and character == "{":
            self._open_call(character)
        elif character.isspace():
            self._pending += character
        else:
            self._no_call()
            self._in_text(character)

    def _open_call(self, character: str) -> None:
        self._reader = CallReader(self._names)
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
            self._where = "after"
            if verdict == "broken":
                self._after_call(character)
        else:
            self._no_call()

    def _start_call(self, name: str) -> None:
        self._events.append(CallStart(self.num_calls, self._new_id(self._form), name))
        self.num_calls += 1
        self._started = self._follows_call = True
        self._pending = self._space = ""

    def _arguments(self) -> None:
        fragment = self._reader.take_fragment()
        if fragment:
            self._events.append(CallArguments(self.num_calls - 1, fragment))

    def _after_call(self, character: str) -> None:
        """After a call: a closer, a separator, or something that is neither."""
        closer = self._form.closer
        if not self._mark and character.isspace():
            self._space += character
        elif closer.startswith(self._mark + character):
            self._mark += character
            if self._mark == closer:
                self._mark = self._space = ""
                self._where = "text"
        elif not self._mark and character in self._form.separators:
            self._pending = self._space + character
            self._space = ""
            self._where = "opened"
        elif not self._mark and self._form.bare and character == "{":
            self._open_call(character)
        else:
            mark, self._mark = self._mark, ""
            self._where = "text"
            for held in mark + character:
                self._in_text(held)

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
    form: CallFormat, names: Collection[str], text: str, new_id: Callable[[CallFormat], str] = new_call_id
) -> Parsed:
    """A whole answer at once: what the events of ToolParser add up to."""
    parser = ToolParser(form, names, new_id)
    return collect([*parser.feed(text), *parser.finish()])


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
