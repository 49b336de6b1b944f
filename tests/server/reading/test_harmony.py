"""gpt-oss' answers, in the shapes that harmony's own description has, whole and cut at every place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.reading.events import CallArguments, CallStart, Content, Event, ThoughtText
from server.reading.harmony import HarmonyReader
from server.reading.reasoning import choose as choose_reasoning
from server.reading.tools.formats import choose

ANALYSIS = "<|channel|>analysis<|message|>Need the weather.<|end|>"
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo <|x|>"}'
FINAL = "<|channel|>final<|message|>It is <b>cold</b>."
NEXT = "<|start|>assistant"

# text, thought, content, calls
CASES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    (ANALYSIS + NEXT + FINAL, "Need the weather.", "It is <b>cold</b>.", []),
    (ANALYSIS + NEXT + FINAL + "<|return|>", "Need the weather.", "It is <b>cold</b>.", []),
    (FINAL, "", "It is <b>cold</b>.", []),
    (ANALYSIS + NEXT + CALL + "<|call|>", "Need the weather.", "", [("weather", '{"city": "Oslo <|x|>"}')]),
    (ANALYSIS + NEXT + CALL, "Need the weather.", "", [("weather", '{"city": "Oslo <|x|>"}')]),
    # The recipient in the role, as it also comes.
    (ANALYSIS + NEXT + " to=functions.weather<|channel|>commentary json<|message|>{}<|call|>", "Need the weather.", "",
     [("weather", "{}")]),
    (" to=functions.noop<|channel|>commentary<|message|>{}", "", "", [("noop", "{}")]),
    # A word to the user before the call.
    ("<|channel|>commentary<|message|>I look.<|end|>" + NEXT + CALL + "<|call|>", "", "I look.",
     [("weather", '{"city": "Oslo <|x|>"}')]),
    ("<|channel|>commentary<|message|>I look.<|end|>" + NEXT + FINAL, "", "I look.\n\nIt is <b>cold</b>.", []),
    ("<|channel|>analysis<|message|>a<|end|>" + NEXT + "<|channel|>analysis<|message|>b<|end|>" + NEXT + FINAL, "ab",
     "It is <b>cold</b>.", []),
    (CALL.replace("weather", "unknown") + "<|call|>", "", CALL.replace("weather", "unknown") + "<|call|>", []),
    ("Just text <|channel|>.", "", "Just text <|channel|>.", []),
    ("", "", "", []),
]  # fmt: skip


def read(pieces: list[str], *, cut: bool = False) -> tuple[str, str, list[tuple[str, str]]]:
    reader = HarmonyReader({"weather", "noop"}, lambda: "id")
    events: list[Event] = []
    for piece in pieces:
        events += reader.feed(piece)
    events += reader.finish(cut=cut)
    calls = [event.name for event in events if isinstance(event, CallStart)]
    arguments = ["".join(e.text for e in events if isinstance(e, CallArguments) and e.index == i) for i in range(9)]
    thought = "".join(event.text for event in events if isinstance(event, ThoughtText))
    content = "".join(event.text for event in events if isinstance(event, Content))
    return thought, content, list(zip(calls, arguments, strict=False))


@pytest.mark.parametrize(("text", "thought", "content", "calls"), CASES)
def test_whole_and_cut_at_every_place(text: str, thought: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert read([text]) == (thought, content, calls)
    assert read(list(text)) == (thought, content, calls)
    for place in range(len(text)):
        assert read([text[:place], text[place:]]) == (thought, content, calls)
        assert read([text[:place]], cut=True) == read(list(text[:place]), cut=True)


@pytest.mark.parametrize("text", [case[0] for case in CASES])
def test_a_byte_at_a_time(byte_by_byte: Callable[[str], list[str]], text: str) -> None:
    text = text.replace("cold", "très 冷").replace("Oslo", "Ås")
    assert read(byte_by_byte(text)) == read([text])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (ANALYSIS[:-4], ("Need the weather.", "", [])),
        (CALL[:45], ("", "", [("weather", "")])),
        (CALL[:-3], ("", "", [("weather", '{"city": "Oslo <|x|')])),
        ("<|channel|>commentary to=functions.noop", ("", "", [])),
        (FINAL + "<|ret", ("", "It is <b>cold</b>.<|ret", [])),
        ("<|chan", ("", "", [])),
    ],
)
def test_what_is_cut(text: str, found: object) -> None:
    assert read([text], cut=True) == found


def test_its_template_tells() -> None:
    template = "{{ '<|start|>assistant<|channel|>commentary to=functions.' + name + '<|message|>' }}"
    form, thought = choose(template), choose_reasoning(template)
    assert form is not None
    assert thought is not None
    assert (form.name, thought.name) == ("harmony", "harmony")
