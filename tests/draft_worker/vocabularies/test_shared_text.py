"""Which tokens of a draft by shared text are settled, and where a text ends in the middle of a character."""

from __future__ import annotations

from typing import cast

import pytest

from draft_worker.vocabularies.shared_text import TextReading, stable
from draft_worker.vocabularies.speech import Speech


class Letters:
    """A tokenizer of single bytes and of a few longer tokens, the longest first."""

    LONGER = ("the", "he", " a", "é")

    def __init__(self, lead: list[int] | None = None, bytes_alone: bool = True) -> None:
        self.spelled = [bytes([byte]) for byte in range(256)] + [token.encode() for token in self.LONGER]
        self.lead = lead or []
        self.begin: int | None = None
        self.bytes_alone = {byte: byte for byte in range(256)} if bytes_alone else None

    def spell(self, ids: list[int]) -> bytes:
        return b"".join(self.spelled[token_id] for token_id in ids)

    def encode(self, text: str) -> list[int]:
        data, ids, place = text.encode(), [], 0
        while place < len(data):
            size, token_id = max(
                (len(piece), token_id) for token_id, piece in enumerate(self.spelled) if data.startswith(piece, place)
            )
            ids.append(token_id)
            place += size
        return ids

    encode_start = encode

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]


SPEECH = Letters()
THE, HE = 256, 257


def settled(now: str, before: str, drawn: list[str]) -> str:
    """The text of the tokens of `now` that stay whatever the drafter says next."""
    ids = SPEECH.encode(now)
    kept = stable(ids, SPEECH.encode(before), [piece.encode() for piece in drawn], cast(Speech, SPEECH))
    return SPEECH.spell(ids[:kept]).decode()


@pytest.mark.parametrize(
    ("drawn", "kept"),
    [
        (["x", "t", "h"], "xth"),  # each drawn as a whole itself
        (["x", "th"], "x"),  # t and h may yet become "the"
        (["x", "the"], "xthe"),
        (["xt", "he"], "x"),  # "the" took the place of what was said
        ([], ""),
    ],
)
def test_a_token_stays_if_more_text_cannot_change_it(drawn: list[str], kept: str) -> None:
    assert settled("".join(drawn), "".join(drawn[:-1]), drawn) == kept


def reading(draft: Letters, target: Letters = SPEECH) -> TextReading:
    return TextReading(cast(Speech, target), cast(Speech, draft))


def test_half_a_character_is_read_byte_by_byte_or_not_at_all() -> None:
    half = [*b"ab", "é".encode()[0]]
    for draft, expected in ((Letters(), half), (Letters(bytes_alone=False), None)):
        read = reading(draft)
        read.update(half, 0, 0)
        assert read.read() == expected
        read.update([*half, "é".encode()[1]], len(half), 0)
        assert read.read() == [*b"ab", SPEECH.encode("é")[0]], "whole, it is one token"


def test_another_prompt_stands_in_for_the_targets() -> None:
    read = reading(Letters())
    prompt = SPEECH.encode("the prompt")
    read.use_prompt(len(prompt), [7, 8, 9])
    read.update([*prompt, *SPEECH.encode(" a b")], 0, len(prompt))
    assert read.read() == [7, 8, 9, *SPEECH.encode(" a b")]
    assert read.length_at(len(prompt)) == (3, True)


def test_a_changed_context_is_read_as_if_it_were_new() -> None:
    words = " ".join(f"word{number}" for number in range(40))
    read = reading(Letters())
    read.update(SPEECH.encode(words), 0, 5)
    changed = SPEECH.encode(words[:100] + "the end")
    read.update(changed, 100, 5)
    fresh = reading(Letters())
    fresh.update(changed, 0, 5)
    assert read.read() == fresh.read()
    assert SPEECH.spell(read.read() or []).decode() == words[:100] + "the end"
