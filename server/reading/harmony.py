"""gpt-oss' harmony: an answer is a series of messages, each in a channel: thoughts, calls, and what the user reads.

The form is https://developers.openai.com/cookbook/articles/openai-harmony: <|channel|>analysis<|message|>…<|end|>,
<|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>,
<|start|>assistant<|channel|>final<|message|>…<|return|>. A prompt ends with <|start|>assistant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from server.reading.events import CallArguments, CallStart, Content, Event, ThoughtText

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKS = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)(?=[\s<])")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
# What a header may begin with: a role (of a later message), a recipient, a channel.
_HEADER = re.compile(r"\s*(<\|start\|>\s*(assistant)?)?(\s*to=\S*)?\s*(<\|channel\|>.*)?", re.DOTALL)
_MAX_HEADER = 512


class HarmonyReader:
    """Reads one answer. The events, added up, do not depend on how the text was cut.

    A message to a function that there is is a call; one to anything else is content as it stands, marks included. So
    is a text that begins as no message does.
    """

    def __init__(self, names: Collection[str], new_id: Callable[[], str]) -> None:
        """`names`: the functions that may be called."""
        self._names = frozenset(names)
        self._new_id = new_id
        self._kind = "header"  # or where the message goes: thought, content, call, as it stands
        self._header = ""
        self._held = ""  # what may be the beginning of a mark
        self._said = False  # whether there has been content
        self.num_calls = 0

    @property
    def held(self) -> int:
        """How many of the last characters may still be told."""
        return len(self._header) + len(self._held)

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        for character in text:
            self._step(character, events)
        return _joined(events)

    def finish(self, *, cut: bool = False) -> list[Event]:
        """What was held back; the text is over. `cut`: by a limit, not by the model."""
        events: list[Event] = []
        if self._kind != "header":
            # Half a mark of what is not shown anyway is the end that was cut.
            if self._kind in ("content", "as it stands"):
                self._emit(self._held, events)
        elif cut and (name := self._called()) is not None:
            self._start_call(name, events)
        elif not self._begins_header(self._header) or not (self._said or self.num_calls or cut):
            self._emit(self._header, events, kind="as it stands")
        self._header = self._held = ""
        return _joined(events)

    def _step(self, character: str, events: list[Event]) -> None:
        if self._kind == "header":
            self._header += character
            if self._header.endswith(MESSAGE):
                self._open(events)
            elif not self._begins_header(self._header):
                held, self._header = self._header, ""
                self._kind = "as it stands"
                self._begin_content(events)
                for each in held:
                    self._step(each, events)
            return
        self._held += character
        while self._held and not any(end.startswith(self._held) for end in ENDS):
            self._emit(self._held[0], events)
            self._held = self._held[1:]
        if self._held in ENDS:
            if self._kind == "as it stands":
                self._emit(self._held, events)
            self._held = ""
            self._kind = "header"

    def _begins_header(self, text: str) -> bool:
        if len(text) > _MAX_HEADER:
            return False
        stripped = text.lstrip()
        beginnings = (f"{START}assistant", CHANNEL, "to=")
        return any(b.startswith(stripped) or stripped.startswith(b) for b in beginnings)

    def _called(self) -> str | None:
        """The function that the header so far speaks to."""
        found = _RECIPIENT.search(self._header)
        return found[1] if found is not None and found[1] in self._names else None

    def _open(self, events: list[Event]) -> None:
        header, name = self._header, self._called()
        channel = _CHANNEL.search(header)
        if name is not None:
            self._start_call(name, events)
        elif _RECIPIENT.search(header):
            self._kind = "as it stands"
            self._begin_content(events)
            self._emit(header, events)
        elif channel is not None and channel[1] == "analysis":
            self._kind = "thought"
        else:
            self._kind = "content"
            self._begin_content(events)
        self._header = ""

    def _start_call(self, name: str, events: list[Event]) -> None:
        self._kind = "call"
        events.append(CallStart(self.num_calls, self._new_id(), name))
        self.num_calls += 1

    def _begin_content(self, events: list[Event]) -> None:
        """Messages of their own are paragraphs."""
        if self._said:
            events.append(Content("\n\n"))

    def _emit(self, text: str, events: list[Event], kind: str = "") -> None:
        if not text:
            return
        match kind or self._kind:
            case "thought":
                events.append(ThoughtText(text))
            case "call":
                events.append(CallArguments(self.num_calls - 1, text))
            case _:
                self._said = True
                events.append(Content(text))


def _joined(events: list[Event]) -> list[Event]:
    """Neighbours of one kind as one."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, Content) and isinstance(last, Content):
            joined[-1] = Content(last.text + event.text)
        elif isinstance(event, ThoughtText) and isinstance(last, ThoughtText):
            joined[-1] = ThoughtText(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            joined[-1] = CallArguments(event.index, last.text + event.text)
        else:
            joined.append(event)
    return joined
