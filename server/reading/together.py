"""How a chat answer's text is read: reasoning apart from the answer, tool calls apart from content."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from server.reading.events import CallArguments, CallStart, Content, Event, ThoughtText
from server.reading.harmony import HarmonyReader
from server.reading.reasoning import ReasoningFormat, ReasoningSplitter, Split, Start
from server.reading.tools import formats
from server.reading.tools.choice import ToolUse
from server.reading.tools.formats import CallFormat
from server.reading.tools.parser import ToolParser, new_call_id


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """What to look for. `calls` is None if no tool may be called, `thought` where the model does not think aloud."""

    use: ToolUse
    calls: CallFormat | None = None
    thought: ReasoningFormat | None = None
    start: Start = "outside"

    def needs_special_tokens(self, special: Collection[str]) -> bool:
        """Whether marks that are looked for would be lost if special tokens (`special`) were left out of the text."""
        marks = [] if self.calls is None else [*self.calls.marks]
        if self.thought is not None:
            marks += [self.thought.opener, self.thought.closer, *self.thought.hidden]
        kept = any(form is not None and form.special for form in (self.calls, self.thought))
        return kept or any(mark in special for mark in marks)

    def reader(self) -> AnswerReader:
        return AnswerReader(self)


class AnswerReader:
    """Reads one choice. The events, added up, do not depend on how the text was cut."""

    def __init__(self, reading: AnswerReading) -> None:
        calls, thought = reading.calls, reading.thought
        self._splitter: ReasoningSplitter | None = None
        self._parser: ToolParser | HarmonyReader | None = None
        if (thought is not None and thought.channels) or (calls is not None and calls.style == "channels"):
            names = reading.use.names if calls is not None else ()
            form = calls or formats.FORMATS["harmony"]
            self._parser = HarmonyReader(names, lambda: new_call_id(form))
        else:
            if thought is not None:
                self._splitter = ReasoningSplitter(thought, reading.start)
            if calls is not None:
                self._parser = ToolParser(calls, reading.use.schemas)
            elif thought is not None and thought.hidden:
                self._parser = ToolParser(CallFormat("none", "", "", hidden=thought.hidden), {})
        self._reading = reading

    @property
    def called(self) -> bool:
        """Whether a tool has been called."""
        return self._parser is not None and self._parser.num_calls > 0

    @property
    def held(self) -> int:
        """How many of the last characters may still be told."""
        parts = (self._splitter, self._parser)
        return sum(part.held for part in parts if part is not None)

    def feed(self, text: str) -> list[Event]:
        return self._read(self._splitter.feed(text) if self._splitter is not None else Split(content=text))

    def finish(self, *, cut: bool = False) -> list[Event]:
        """What was held back; the text is over. `cut`: by a limit, not by the model."""
        events = self._read(self._splitter.finish()) if self._splitter is not None else []
        if self._parser is not None:
            last = self._permitted(self._parser.finish(cut=cut))
            must_call = self._reading.calls is not None and self._reading.use.mode == "required"
            events += self._half_a_call(last) if cut and must_call and not self.called else last
        return events

    def _half_a_call(self, held: Sequence[Event]) -> list[Event]:
        """What must be a call, and was cut before its name, is no content: it is one if but one function could follow.

        `held`: what was read of it.
        """
        events: list[Event] = [event for event in held if not isinstance(event, Content)]
        names, form = self._reading.use.names, self._reading.calls
        if len(events) < len(held) and len(names) == 1 and form is not None:
            events.append(CallStart(0, new_call_id(form), *names))
        return events

    def _read(self, split: Split) -> list[Event]:
        events: list[Event] = [ThoughtText(split.reasoning)] if split.reasoning else []
        if split.content and self._parser is not None:
            events += self._permitted(self._parser.feed(split.content))
        elif split.content:
            events.append(Content(split.content))
        return events

    def _permitted(self, events: Sequence[Event]) -> list[Event]:
        """Without parallel calls a model that makes several is held to its first, as vLLM does."""
        if self._reading.use.parallel:
            return list(events)
        return [event for event in events if not isinstance(event, CallStart | CallArguments) or event.index == 0]
