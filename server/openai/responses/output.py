"""Builds an answer's output items as the text is read, with an event for each step."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from server.openai.answers import ChatLogprob
from server.openai.responses.answers import (
    ArgumentsDelta,
    ArgumentsDone,
    ItemEvent,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    PartEvent,
    ReasoningDelta,
    ReasoningDone,
    ReasoningText,
    ServerEvent,
    TextDelta,
    TextDone,
)
from server.openai.responses.items import Status
from server.reading.events import CallArguments, CallStart, Content, Event, ThoughtText


class Output:
    """`items` so far; the last may still be open. An item ends when a call, or an item of another kind, begins."""

    def __init__(self) -> None:
        self.items: list[OutputItem] = []
        self._open = False
        self._logprobs: list[ChatLogprob] = []

    @property
    def reasoning(self) -> str:
        """The whole thought."""
        return "".join(item.content[0].text for item in self.items if isinstance(item, OutputReasoning))

    def feed(self, events: Sequence[Event], logprobs: Sequence[ChatLogprob] = ()) -> list[ServerEvent]:
        """`logprobs` belong to the next text shown; an answer with log-probabilities has text items only."""
        self._logprobs += logprobs
        sent: list[ServerEvent] = []
        for event in events:
            match event:
                case Content():
                    sent += self._text(event.text)
                case ThoughtText():
                    sent += self._thought(event.text)
                case CallStart():
                    sent += self._start_call(event)
                case CallArguments():
                    sent += self._arguments(event.text)
        return sent

    def finish(self, status: Status) -> list[ServerEvent]:
        """The text is over; if there was none, there is an empty message. `status` is the last item's."""
        sent: list[ServerEvent] = []
        if not self.items or self._logprobs:
            sent += self._text("")
        return sent + self._close(status)

    def _text(self, text: str) -> list[ServerEvent]:
        sent: list[ServerEvent] = []
        item = self._current()
        if not isinstance(item, OutputMessage):
            sent += self._close()
            item = OutputMessage(type="message", id=_new("msg"), role="assistant", status="in_progress", content=[])
            sent += self._begin(item)
            item.content.append(OutputText(type="output_text", text="", annotations=[], logprobs=[]))
            sent.append(self._part("response.content_part.added", item))
        logprobs, self._logprobs = self._logprobs, []
        part = item.content[0]
        part.text += text
        part.logprobs += logprobs
        if text or logprobs:
            delta = TextDelta(type="response.output_text.delta", delta=text, logprobs=logprobs, **self._place(item))
            sent.append(delta)
        return sent

    def _thought(self, text: str) -> list[ServerEvent]:
        sent: list[ServerEvent] = []
        item = self._current()
        if not isinstance(item, OutputReasoning):
            sent += self._close()
            item = OutputReasoning(type="reasoning", id=_new("rs"), summary=[], content=[], status="in_progress")
            sent += self._begin(item)
            item.content.append(ReasoningText(type="reasoning_text", text=""))
            sent.append(self._part("response.content_part.added", item))
        item.content[0].text += text
        sent.append(ReasoningDelta(type="response.reasoning_text.delta", delta=text, **self._place(item)))
        return sent

    def _start_call(self, event: CallStart) -> list[ServerEvent]:
        sent = self._close()
        item = OutputCall(
            type="function_call", id=_new("fc"), call_id=event.id, name=event.name, arguments="", status="in_progress"
        )
        return sent + self._begin(item)

    def _arguments(self, text: str) -> list[ServerEvent]:
        item = self._current()
        assert isinstance(item, OutputCall)  # calls are read one after the other
        item.arguments += text
        return [
            ArgumentsDelta(
                type="response.function_call_arguments.delta",
                item_id=item.id,
                output_index=len(self.items) - 1,
                delta=text,
            )
        ]

    def _current(self) -> OutputItem | None:
        return self.items[-1] if self._open else None

    def _begin(self, item: OutputItem) -> list[ServerEvent]:
        self.items.append(item)
        self._open = True
        return [self._whole("response.output_item.added", item)]

    def _close(self, status: Status = "completed") -> list[ServerEvent]:
        item = self._current()
        if item is None:
            return []
        self._open = False
        item.status = status
        sent: list[ServerEvent] = []
        match item:
            case OutputMessage():
                part = item.content[0]
                sent.append(
                    TextDone(
                        type="response.output_text.done",
                        text=part.text,
                        logprobs=list(part.logprobs),
                        **self._place(item),
                    )
                )
                sent.append(self._part("response.content_part.done", item))
            case OutputReasoning():
                text = item.content[0].text
                sent.append(ReasoningDone(type="response.reasoning_text.done", text=text, **self._place(item)))
                sent.append(self._part("response.content_part.done", item))
            case OutputCall():
                sent.append(
                    ArgumentsDone(
                        type="response.function_call_arguments.done",
                        item_id=item.id,
                        output_index=len(self.items) - 1,
                        name=item.name,
                        arguments=item.arguments,
                    )
                )
        return [*sent, self._whole("response.output_item.done", item)]

    # Events hold copies: the item goes on changing before they are sent.

    def _whole(self, kind: str, item: OutputItem) -> ItemEvent:
        copy = item.model_copy(deep=True)
        return ItemEvent.model_validate({"type": kind, "output_index": len(self.items) - 1, "item": copy})

    def _part(self, kind: str, item: OutputMessage | OutputReasoning) -> PartEvent:
        copy = item.content[0].model_copy(deep=True)
        return PartEvent.model_validate({"type": kind, "part": copy, **self._place(item)})

    def _place(self, item: OutputItem) -> dict[str, Any]:
        return {"item_id": item.id, "output_index": len(self.items) - 1, "content_index": 0}


def _new(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
