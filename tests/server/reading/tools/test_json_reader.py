"""A call as JSON, read character by character: when it is certain, where it ends, and what is no call."""

from __future__ import annotations

import pytest

from server.reading.tools.call_reader import Verdict
from server.reading.tools.json_reader import JsonReader


def read(text: str) -> tuple[JsonReader, Verdict, int]:
    """The reader, its last verdict, and how many characters it took."""
    reader = JsonReader({"add", "noop"})
    verdict: Verdict = "more"
    count = 0
    for character in text:
        verdict = reader.feed(character)
        count += 1
        if verdict != "more":
            break
    return reader, verdict, count


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name": "add", "arguments": {"a": 1}}', '{"a": 1}'),
        ('{"name":"add","parameters":{"a":{"b":[1,{}]}}}', '{"a":{"b":[1,{}]}}'),
        ('{"type": "function", "id": "c1", "tool_name": "add", "arguments": {}}', "{}"),
        ('{"name": "add", "arguments": {"a": "}{\\"]"}}', '{"a": "}{\\"]"}'),
        ('{"name": "add", "arguments": {"a": nonsense}}', '{"a": nonsense}'),  # as the model wrote it
        ('{"arguments": {"a": 1}, "name": "add"}', '{"a": 1}'),
        ('{"name": "add", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "add", "arguments": null}', "{}"),
        ('{"name": "add"}', "{}"),
        ('{"name": "add", "arguments": {"a": 1}, "extra": 5}', '{"a": 1}'),
    ],
)
def test_arguments_come_as_they_were_written(text: str, arguments: str) -> None:
    reader, verdict, count = read(text + " and more")
    assert (verdict, count) == ("call", len(text))
    assert (reader.name, reader.take_fragment()) == ("add", arguments)


def test_a_call_is_certain_once_its_arguments_open() -> None:
    text = '{"name": "add", "arguments": {"a": 12'
    for length in range(1, len(text) + 1):
        reader, verdict, _ = read(text[:length])
        assert verdict == "more"
        assert (reader.name is not None) == ('"arguments": {' in text[:length])
    assert reader.take_fragment() == '{"a": 12'
    assert reader.take_fragment() == "", "what was taken is not given again"


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ('{"name": "other"', '{"name": "other"'),
        ('{"colour": 1}', '{"colour"'),
        ('{"name": 5, ', '{"name": 5,'),
        ('{"name":: "add"}', '{"name"::'),
        ('{"name" "add"}', '{"name" "'),
        ('{"name": "add",, ', '{"name": "add",,'),
        ("{name", "{n"),
        ('{"arguments": {"a": 1}}', '{"arguments": {"a": 1}}'),
        ('{"name": "add", "arguments": [1]}', '{"name": "add", "arguments": [1]}'),
        ('{"name": "add", "arguments": "no json"}', '{"name": "add", "arguments": "no json"}'),
        ('{"name": "add", "id": truth}', '{"name": "add", "id": truth'),
        ("[", "["),
    ],
)
def test_other_json_is_no_call(text: str, taken: str) -> None:
    reader, verdict, count = read(text)
    assert (verdict, text[:count]) == ("broken", taken)
    assert reader.name is None


def test_a_text_that_is_cut_keeps_arguments_that_were_whole() -> None:
    for text, name in (
        ('{"arguments": {"a": 1}, "name": "add"', "add"),
        ('{"arguments": {"a": 1}, "name": "ad', None),
        ('{"name": "add"', None),
    ):
        reader, _, _ = read(text)
        reader.cut()
        assert reader.name == name
        assert reader.take_fragment() == ('{"a": 1}' if name else "")
