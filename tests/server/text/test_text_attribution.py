"""Which token a character comes from, whatever the detokenizer holds back."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models

from protocol.worker_info import TokenizerInfo, Vocabulary
from server.backend import Round
from server.text.attribution import Attribution, Token, tokens_of
from server.text.detokenizer import (
    ByteFallbackDetokenizer,
    ByteLevelDetokenizer,
    Detokenizer,
    WindowDetokenizer,
)
from server.text.tokenizer import TextTokenizer

BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}
VOCABULARY = {**BYTES, "▁a": 256, "b": 257, "\ufffd": 258}
SENTENCEPIECE = Tokenizer(models.BPE(vocab=VOCABULARY, merges=[], byte_fallback=True))
SENTENCEPIECE.decoder = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
INFO = TokenizerInfo.model_construct(
    tokenizer_json=SENTENCEPIECE.to_str(),
    model_id="bytes",
    special_tokens={},
    vocabulary=Vocabulary(fingerprint="v", size=259, logits_size=259),
)


def level() -> Detokenizer:
    return ByteLevelDetokenizer(
        lambda token_id: [b"b", b" a", b"\xef\xbf\xbd"][token_id - 256] if token_id > 255 else bytes([token_id])
    )


def fallback() -> Detokenizer:
    return ByteFallbackDetokenizer(TextTokenizer(INFO), True, [("▁", " ")], (" ", 1))


def window() -> Detokenizer:
    return WindowDetokenizer(TextTokenizer(INFO), True)


def owners(detokenizer: Detokenizer, ids: list[int]) -> list[tuple[str, int]]:
    """Each character, and the place of its token."""
    attribution = Attribution(detokenizer)
    for place, token_id in enumerate(ids):
        piece = detokenizer.push(token_id)
        attribution.decoded(piece, Token(0, place, "plain"))
        attribution.shown(piece)
    piece = detokenizer.finish()
    attribution.decoded(piece, Token(0, len(ids) - 1, "plain"))
    attribution.shown(piece)
    return [(character, span.token.index) for span in attribution.take() for character in span.text]


@pytest.mark.parametrize("make", [level, fallback, window])
def test_a_character_of_several_tokens_is_the_last_ones(make: object) -> None:
    assert callable(make)
    ids = [*"€".encode(), *"é".encode(), 257]
    assert owners(make(), ids)[:2] == [("€", 2), ("é", 4)]
    assert owners(make(), ids)[2][1] == 5


@pytest.mark.parametrize("make", [level, fallback, window])
def test_one_that_is_never_finished_is_that_of_the_token_that_began_it(make: object) -> None:
    assert callable(make)
    assert owners(make(), [0xE2, 257])[0] == ("\ufffd", 0)
    assert owners(make(), [0xE2, 257])[1][1] == 1
    assert owners(make(), [257, 0xE2])[-1] == ("\ufffd", 1)


def test_peeking_changes_nothing() -> None:
    for make in (level, fallback, window):
        one, other = make(), make()
        ids = [256, *"€".encode(), 0xE2, 257, 256, 0xFF, 0x41]
        texts = ["", ""]
        for token_id in ids:
            assert one.peek() == one.peek()
            texts[0] += one.push(token_id)
            texts[1] += other.push(token_id)
        assert one.peek() == one.finish() or make is window
        texts[1] += other.finish()
        assert texts[1].startswith(texts[0])


@pytest.mark.parametrize(
    ("drafted", "accepted", "kept", "origins"),
    [
        (0, 0, 1, ["plain"]),
        (3, 0, 1, ["target"]),
        (3, 2, 3, ["draft", "draft", "target"]),
        (2, 2, 3, ["draft", "draft", "bonus"]),
        (2, 2, 2, ["draft", "draft"]),
        (4, 4, 2, ["draft", "draft"]),
    ],
)
def test_origins(drafted: int, accepted: int, kept: int, origins: list[str]) -> None:
    one = Round([1] * (accepted + 1), drafted, accepted, None, None, None, True, source="lookup")
    tokens = tokens_of(one, 7, kept)
    assert [token.origin for token in tokens] == origins
    assert [token.source for token in tokens] == ["lookup" if origin == "draft" else None for origin in origins]
    assert [(token.round, token.index) for token in tokens] == [(7, place) for place in range(kept)]
