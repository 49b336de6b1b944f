"""Output items built as an answer is read, and the events that report each step."""

from __future__ import annotations

from collections.abc import Sequence

from server.openai.answers import ChatLogprob
from server.openai.responses.answers import (
    ArgumentsDone,
    ItemEvent,
    OutputCall,
    OutputMessage,
    OutputReasoning,
    PartEvent,
    ServerEvent,
    TextDelta,
    TextDone,
)
from server.openai.responses.output import Output
from server.reading.events import CallArguments, CallStart, Content, ThoughtText

WHOLE = [
    ThoughtText("hm"),
    Content("Well"),
    Content(", yes"),
    CallStart(0, "call_1", "add"),
    CallArguments(0, '{"a"'),
    CallArguments(0, ": 1}"),
    CallStart(1, "call_2", "noop"),
    CallArguments(1, "{}"),
]


def kinds(events: Sequence[ServerEvent]) -> list[str]:
    return [event.type.removeprefix("response.") for event in events]


def logprob(token: str) -> ChatLogprob:
    return ChatLogprob(token=token, logprob=-0.5, bytes=None, top_logprobs=[])


def test_an_item_ends_where_another_kind_or_another_call_begins() -> None:
    output = Output()
    events = [*output.feed(WHOLE), *output.finish("completed")]
    thought, message, first, second = output.items
    assert isinstance(thought, OutputReasoning)
    assert isinstance(message, OutputMessage)
    assert (thought.content[0].text, message.content[0].text) == ("hm", "Well, yes")
    assert isinstance(first, OutputCall)
    assert isinstance(second, OutputCall)
    assert (first.call_id, first.name, first.arguments) == ("call_1", "add", '{"a": 1}')
    assert (second.call_id, second.name, second.arguments) == ("call_2", "noop", "{}")
    assert {item.status for item in output.items} == {"completed"}
    assert output.reasoning == "hm"
    added = [event.output_index for event in events if event.type == "response.output_item.added"]
    done = [event.output_index for event in events if event.type == "response.output_item.done"]
    assert added == done == [0, 1, 2, 3]
    assert [event.name for event in events if isinstance(event, ArgumentsDone)] == ["add", "noop"]


def test_each_step_of_a_message_has_its_event() -> None:
    output = Output()
    assert kinds(output.feed([Content("a")])) == ["output_item.added", "content_part.added", "output_text.delta"]
    assert kinds(output.feed([Content("b")])) == ["output_text.delta"]
    ended = output.finish("incomplete")
    assert kinds(ended) == ["output_text.done", "content_part.done", "output_item.done"]
    assert isinstance(ended[0], TextDone)
    assert ended[0].text == "ab"
    assert output.items[0].status == "incomplete"


def test_events_hold_the_item_as_it_was() -> None:
    output = Output()
    added, part, _ = output.feed([Content("a")])
    output.feed([Content("b")])
    output.finish("completed")
    assert isinstance(added, ItemEvent)
    assert isinstance(part, PartEvent)
    assert (added.item.status, part.part.text) == ("in_progress", "")


def test_only_the_last_item_is_cut() -> None:
    output = Output()
    output.feed(WHOLE)
    output.finish("incomplete")
    assert [item.status for item in output.items] == ["completed", "completed", "completed", "incomplete"]


def test_an_answer_without_text_is_an_empty_message() -> None:
    output = Output()
    assert kinds(output.finish("completed"))[0] == "output_item.added"
    [message] = output.items
    assert isinstance(message, OutputMessage)
    assert message.content[0].text == ""
    thinking = Output()
    thinking.feed([ThoughtText("hm")])
    thinking.finish("completed")
    assert [item.type for item in thinking.items] == ["reasoning"]


def test_logprobs_go_with_the_next_text_and_none_is_lost() -> None:
    output = Output()
    assert output.feed([], [logprob("a")]) == []
    *_, delta = output.feed([Content("ab")], [logprob("b")])
    assert isinstance(delta, TextDelta)
    assert [entry.token for entry in delta.logprobs] == ["a", "b"]
    output.feed([], [logprob("<end>")])
    last, *_ = output.finish("completed")
    assert isinstance(last, TextDelta)
    assert (last.delta, [entry.token for entry in last.logprobs]) == ("", ["<end>"])
    [message] = output.items
    assert isinstance(message, OutputMessage)
    assert [entry.token for entry in message.content[0].logprobs] == ["a", "b", "<end>"]
