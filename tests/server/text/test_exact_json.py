"""JSON whose values survive: large integers, half surrogate pairs; and the limits, with our own messages."""

from __future__ import annotations

import pytest

from server.text import exact_json


def test_integers_and_surrogates_come_back_as_they_were() -> None:
    text = '{"n":123456789012345678901234567890,"s":"\\ud800"}'
    value = exact_json.loads(text)
    assert value == {"n": 123456789012345678901234567890, "s": "\ud800"}
    assert exact_json.dumps(value) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1" * 4_500, r"an integer of more than \d+ digits$"),
        ("[" * 100_000, "nested too deeply"),
        ("1e999", "too large a number"),
        ("NaN", "no JSON"),
    ],
)
def test_what_cannot_be_read_is_refused_in_plain_words(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        exact_json.loads(text)
