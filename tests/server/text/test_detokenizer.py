"""Incremental detokenisation equals decoding everything at once, for every kind of decoder."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from server.text.detokenizer import (
    BYTE_LEVEL,
    ByteFallbackDetokenizer,
    ByteLevelDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    token_text,
)
from tests.server.text_models import text_model

SPECIALS = ["<|end|>", "<|user|>"]
TEXTS = ["naïve café 😀😀 你好 the end.", "the quick brown fox", "привет мир, 12 apples"]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=SPECIALS
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("é 😀", normalized=False), AddedToken("Ġx", normalized=False)])
    return tokenizer


def byte_fallback(strip: bool) -> Tokenizer:
    pieces = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "a", "é", "▁▁", "b▁c", "😀"]
    tokenizer = Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, [], byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.add_special_tokens(SPECIALS)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    return tokenizer


def word_pieces() -> Tokenizer:
    pieces = [*SPECIALS, "the", "##ing", "run", ".", "##n", "a", "é"]
    tokenizer = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="a"))
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


KINDS: dict[str, tuple[Tokenizer, type]] = {
    "byte level": (byte_level(), ByteLevelDetokenizer),
    "byte fallback": (byte_fallback(False), ByteFallbackDetokenizer),
    "byte fallback, stripped": (byte_fallback(True), ByteFallbackDetokenizer),
    "word pieces": (word_pieces(), WindowDetokenizer),
}
MODELS = {name: text_model(tokenizer) for name, (tokenizer, _) in KINDS.items()}


def pieces(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.finish()]


@pytest.mark.parametrize("kind", KINDS)
def test_the_right_detokenizer_is_chosen(kind: str) -> None:
    assert type(MODELS[kind].detokenizer(True)) is KINDS[kind][1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", [True, False])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_pieces_add_up(kind: str, skip: bool, data: st.DataObject) -> None:
    tokenizer = KINDS[kind][0]
    # Ids past the vocabulary stand for padded rows of the logits.
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() + 3), max_size=60))
    found = pieces(MODELS[kind].detokenizer(skip), token_ids)
    assert "".join(found) == tokenizer.decode(token_ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", ["byte level", "byte fallback", "byte fallback, stripped"])
@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=40))
def test_no_character_is_split(kind: str, text: str) -> None:
    tokenizer = KINDS[kind][0]
    token_ids = tokenizer.encode(text, add_special_tokens=False).ids
    found = pieces(MODELS[kind].detokenizer(False), token_ids)
    assert "".join(found) == tokenizer.decode(token_ids, skip_special_tokens=False)
    if "\ufffd" not in "".join(found):
        assert not any("\ufffd" in piece for piece in found)


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=40))
def test_invalid_bytes_as_the_library_shows_them(data: bytes) -> None:
    tokenizer = KINDS["byte level"][0]
    characters = {byte: character for character, byte in BYTE_LEVEL.items()}
    token_ids = [tokenizer.token_to_id(characters[byte]) for byte in data]
    found = "".join(pieces(MODELS["byte level"].detokenizer(True), token_ids))
    assert found == tokenizer.decode(token_ids) == data.decode(errors="replace")


def test_an_emoji_waits_for_its_last_byte() -> None:
    tokenizer = KINDS["byte level"][0]
    characters = {byte: character for character, byte in BYTE_LEVEL.items()}
    token_ids = [tokenizer.token_to_id(characters[byte]) for byte in "🦊".encode()]
    assert pieces(MODELS["byte level"].detokenizer(True), token_ids) == ["", "", "", "🦊", ""]


@pytest.mark.parametrize("kind", ["byte level", "byte fallback", "byte fallback, stripped"])
def test_the_seam_between_prompt_and_output(kind: str) -> None:
    tokenizer = KINDS[kind][0]
    for prompt, whole in [("a", "a the a"), ("é😀🦊", "é😀🦊 the"), ("the", "the a")]:
        before = tokenizer.encode(prompt, add_special_tokens=False).ids
        after = tokenizer.encode(whole, add_special_tokens=False).ids
        if after[: len(before)] != before:
            continue
        detokenizer = MODELS[kind].detokenizer(True)
        detokenizer.prime(before)
        output = "".join(pieces(detokenizer, after[len(before) :]))
        assert tokenizer.decode(before) + output == tokenizer.decode(after)


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_a_list(kind: str) -> None:
    token_ids = [7, 3, 8, 0, 5] * 50
    for skip in (True, False):
        expected = KINDS[kind][0].decode(token_ids, skip_special_tokens=skip)
        assert MODELS[kind].decode(token_ids, skip_special_tokens=skip) == expected


def test_how_one_token_is_shown() -> None:
    level = MODELS["byte level"].tokenizer
    assert token_text(level, KINDS["byte level"][0].token_to_id("Ġ")) == (" ", [32])
    fallback = MODELS["byte fallback"].tokenizer
    assert token_text(fallback, KINDS["byte fallback"][0].token_to_id("▁the")) == (" the", list(b" the"))
    assert token_text(fallback, KINDS["byte fallback"][0].token_to_id("<0xF0>")) == ("\ufffd", [0xF0])
    assert token_text(fallback, 100_000) == ("", None)
