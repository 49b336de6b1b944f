"""Reads an answer whose characters each come from a known token, and keeps the tokens to what it turns out to hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from server.reading.events import CallArguments, CallStart, Content, Event, ThoughtText
from server.reading.together import AnswerReader
from server.text.attribution import Span, Token


@dataclass(slots=True)
class AttributedEvent:
    """`spans`, added up, are the event's text; none for the start of a call."""

    event: Event
    spans: list[Span] = field(default_factory=list)


class AttributedReader:
    """An AnswerReader that is fed one character at a time, so that what it tells can be found again in what it read.

    Text that is told as it was read keeps the tokens of its characters, however long it was held back. What is spelled
    anew (arguments of a format that is not JSON, the break between two messages) belongs to the token at which it could
    be told.
    """

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader
        self._read: list[tuple[str, Token]] = []  # what may still be told
        self._last: Token | None = None

    @property
    def called(self) -> bool:
        return self._reader.called

    def feed(self, spans: Iterable[Span]) -> list[AttributedEvent]:
        told: list[AttributedEvent] = []
        for span in spans:
            for character in span.text:
                self._read.append((character, span.token))
                self._last = span.token
                told += self._attributed(self._reader.feed(character))
        return _joined(told)

    def finish(self, *, cut: bool = False) -> list[AttributedEvent]:
        """What was held back; the text is over."""
        return _joined(self._attributed(self._reader.finish(cut=cut)))

    def _attributed(self, events: Sequence[Event]) -> list[AttributedEvent]:
        text = "".join(_text(event) for event in events)
        owners = self._owners(text)
        told: list[AttributedEvent] = []
        place = 0
        for event in events:
            end = place + len(_text(event))
            told.append(AttributedEvent(event, _spans(_text(event), owners[place:end])))
            place = end
        return told

    def _owners(self, text: str) -> list[Token]:
        """Of each character of `text`, which was told last: it ends where what is still held back begins."""
        if not text or self._last is None:
            return []
        end = len(self._read) - self._reader.held
        found: list[Token] = []
        place = end
        for character in reversed(text):
            place -= 1
            while place >= 0 and self._read[place][0] != character:
                place -= 1
            if place < 0:
                break
            found.append(self._read[place][1])
        del self._read[:end]
        return found[::-1] if len(found) == len(text) else [self._last] * len(text)


def _text(event: Event) -> str:
    return "" if isinstance(event, CallStart) else event.text


def _spans(text: str, owners: Sequence[Token]) -> list[Span]:
    taken = zip(text, owners, strict=True)
    return [
        Span("".join(character for character, _ in characters), token)
        for token, characters in groupby(taken, key=lambda one: one[1])
    ]


def _joined(told: list[AttributedEvent]) -> list[AttributedEvent]:
    """Neighbours of one kind as one."""
    joined: list[AttributedEvent] = []
    for one in told:
        last = joined[-1] if joined else None
        event = together(last.event, one.event) if last is not None else None
        if last is None or event is None:
            joined.append(one)
            continue
        last.event = event
        for span in one.spans:
            if last.spans and last.spans[-1].token == span.token:
                last.spans[-1] = Span(last.spans[-1].text + span.text, span.token)
            else:
                last.spans.append(span)
    return joined


def together(first: Event, second: Event) -> Event | None:
    """Both as one, if they are of one kind."""
    match first, second:
        case Content(), Content():
            return Content(first.text + second.text)
        case ThoughtText(), ThoughtText():
            return ThoughtText(first.text + second.text)
        case CallArguments(), CallArguments() if first.index == second.index:
            return CallArguments(first.index, first.text + second.text)
    return None
