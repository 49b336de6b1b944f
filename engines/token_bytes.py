"""The bytes that a tokenizer's tokens stand for, as its tokenizer.json has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any


class UnsupportedTokenizer(ValueError):
    """The bytes of this tokenizer's tokens cannot be told from its tokenizer.json."""


def speller(document: dict[str, Any], tokens: Collection[str]) -> Callable[[str], bytes]:
    """What gives the bytes of a token that is not an added one, for a parsed tokenizer.json with these tokens.

    Raises UnsupportedTokenizer where tokens have no definite bytes (WordPiece, word level).
    """
    parts = [document.get("decoder"), document.get("pre_tokenizer")]
    kinds = {part["type"] for whole in parts if whole for part in parts_of(whole)}
    if "ByteLevel" in kinds:
        return _ByteLevel()
    if "ByteFallback" in kinds or "<0x0A>" in tokens:
        return _byte_fallback
    model = document.get("model", {}).get("type")
    raise UnsupportedTokenizer(f"a byte-level or byte-fallback tokenizer is needed, this one is {model}")


def has_bytes(tokenizer_json: str, tokens: Collection[str]) -> bool:
    """Whether there is a `speller` for it."""
    try:
        speller(json.loads(tokenizer_json), tokens)
    except UnsupportedTokenizer:
        return False
    return True


def parts_of(part: dict[str, Any]) -> list[dict[str, Any]]:
    """A part of a tokenizer.json (a decoder, a normalizer, …) and, if it is a sequence, all parts within it."""
    inner = part.get("decoders") or part.get("pretokenizers") or part.get("normalizers") or []
    return [part, *(leaf for child in inner for leaf in parts_of(child))]


class _ByteLevel:
    """GPT-2's spelling of bytes: printable ones as themselves, the others from U+0100 up, in order."""

    def __init__(self) -> None:
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in printable]
        self._bytes = {chr(byte): byte for byte in printable}
        self._bytes |= {chr(256 + index): byte for index, byte in enumerate(others)}

    def __call__(self, token: str) -> bytes:
        try:
            return bytes([self._bytes[character] for character in token])
        except KeyError:
            return token.encode()


def _byte_fallback(token: str) -> bytes:
    """SentencePiece's spelling: <0x0A> is a byte, U+2581 a space."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("\u2581", " ").encode()
