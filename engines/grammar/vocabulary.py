"""The bytes of every token, which is how a grammar sees a vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

import xgrammar
from tokenizers import Tokenizer

# No UTF-8 text holds this byte, so no token that begins with it is part of what a grammar spells out.
UNSPELLABLE = b"\xff"


class UnsupportedTokenizer(ValueError):
    """The bytes of this tokenizer's tokens cannot be derived from its tokenizer.json."""


def token_bytes(tokenizer_json: str, logits_size: int) -> list[bytes]:
    """Each token's bytes, from a tokenizer.json's text; ids up to `logits_size` that are no token get none.

    Special tokens (<|im_start|> and the like) are not text: a decoder leaves them out, so a string that a grammar
    allowed to contain one would not be the string that the client reads. Only a structural tag that names a special
    token by its id reaches it. Raises UnsupportedTokenizer if tokens have no definite bytes (WordPiece, word level).
    """
    tokenizer = Tokenizer.from_str(tokenizer_json)
    ids = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    spell = _speller(json.loads(tokenizer_json), ids)
    spelled = [b""] * logits_size
    for token, token_id in ids.items():
        if token_id >= logits_size:
            continue
        if token_id not in added:
            spelled[token_id] = spell(token)
        elif added[token_id].special:
            spelled[token_id] = UNSPELLABLE + token.encode()
        else:
            spelled[token_id] = token.encode()
    return spelled


def vocabulary(spelled: Sequence[bytes], stop_token_ids: Collection[int], *, control: bytes) -> xgrammar.TokenizerInfo:
    """What xgrammar calls a tokenizer. `control`: the control characters that tokens may contain.

    xgrammar 0.2.8 lets a string with minLength or maxLength contain raw control characters, which JSON forbids:
    without tokens that hold them none can come. Raises UnsupportedTokenizer if there is no stop token.
    """
    stops = sorted(stop for stop in set(stop_token_ids) if 0 <= stop < len(spelled))
    if not stops:
        raise UnsupportedTokenizer("a grammar needs a stop token to end on, and the model has none")
    unwanted = set(range(32)) - set(control)
    tokens = [token if unwanted.isdisjoint(token) else UNSPELLABLE + token for token in spelled]
    return xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=stops)


class _ByteLevel:
    """GPT-2's spelling of bytes: printable ones as themselves, the others from U+0100 up, in order."""

    def __init__(self) -> None:
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in printable]
        self._bytes = {chr(byte): byte for byte in printable}
        self._bytes |= {chr(256 + index): byte for index, byte in enumerate(others)}

    def __call__(self, token: str) -> bytes:
        if all(character in self._bytes for character in token):
            return bytes(self._bytes[character] for character in token)
        return token.encode()


def _byte_fallback(token: str) -> bytes:
    """SentencePiece's spelling: <0x0A> is a byte, U+2581 a space."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("\u2581", " ").encode()


def _speller(document: dict[str, Any], ids: dict[str, int]) -> Callable[[str], bytes]:
    parts = [document.get("decoder"), document.get("pre_tokenizer")]
    kinds = {part["type"] for whole in parts if whole for part in _flatten(whole)}
    if "ByteLevel" in kinds:
        return _ByteLevel()
    if "ByteFallback" in kinds or "<0x0A>" in ids:
        return _byte_fallback
    model = document.get("model", {}).get("type")
    raise UnsupportedTokenizer(f"grammars need a byte-level or byte-fallback tokenizer, this one is {model}")


def _flatten(part: dict[str, Any]) -> list[dict[str, Any]]:
    inner = part.get("decoders") or part.get("pretokenizers") or []
    return [part, *(leaf for child in inner for leaf in _flatten(child))]
