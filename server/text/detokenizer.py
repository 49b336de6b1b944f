"""Incremental detokenisation: the pieces add up to what decoding all ids at once gives.

Each decoder of the `tokenizers` library is followed rule by rule, at a cost that does not grow with the text. A piece
is held back only while a later token could still change it: an unfinished UTF-8 character, or a run of byte tokens.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

from server.text.tokenizer import TextTokenizer

# Tokens that a windowed decoder looks back on; more than any decoder lets one token reach.
_WINDOW = 8
# Tokens before the output that can still matter to how it is decoded.
_PRIMED = 16
_CACHED_TOKENS = 65_536


class Detokenizer(Protocol):
    """One sequence's text. `push` returns what the token settled; `finish` the rest, once, at the end.

    `prime`, called first, takes what came before the output, whose text is not returned. `peek` returns what `finish`
    would, and changes nothing.
    """

    def prime(self, token_ids: Sequence[int]) -> None: ...

    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...

    def peek(self) -> str: ...


def _byte_level_table() -> dict[str, int]:
    """Character → byte, as GPT-2 spells bytes: printable ones as themselves, others from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(256 + n): byte for n, byte in enumerate(others)})
    return table


BYTE_LEVEL = _byte_level_table()
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def byte_level_bytes(token: str) -> bytes:
    """The bytes a byte-level token stands for; a token with any character outside the table stands for itself."""
    try:
        return bytes([BYTE_LEVEL[character] for character in token])
    except KeyError:
        return token.encode()


class ByteLevelDetokenizer:
    """Tokens are bytes; the text is their UTF-8, with U+FFFD for what is not valid."""

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        """`spell` gives a token's bytes, none for one that is not shown."""
        self._spell = spell
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def prime(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids[-_PRIMED:]:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._spell(token_id))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)

    def peek(self) -> str:
        unfinished, _ = self._decoder.getstate()
        return unfinished.decode(errors="replace")


class ByteFallbackDetokenizer:
    """SentencePiece vocabularies: "▁" for a space, <0xNN> tokens for bytes outside the vocabulary.

    The library decodes a run of byte tokens as one: valid UTF-8 as a whole, or U+FFFD for each of its bytes. So a run
    is held back until a token ends it.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        skip_special_tokens: bool,
        replacements: Sequence[tuple[str, str]],
        strip: tuple[str, int],
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._replacements = replacements
        self._run = bytearray()
        self._strip, self._strip_left = strip

    def prime(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids[-_PRIMED:]:
            self.push(token_id)
        self.finish()

    def push(self, token_id: int) -> str:
        token = self._tokenizer.token(token_id)
        if token is None or (self._skip_special and self._tokenizer.is_special(token)):
            return ""
        for old, new in self._replacements:
            token = token.replace(old, new)
        if _BYTE_TOKEN.fullmatch(token):
            self._run.append(int(token[3:5], 16))
            return ""
        return self._stripped(self._end_run() + token)

    def finish(self) -> str:
        return self._stripped(self._end_run())

    def peek(self) -> str:
        run, left = bytearray(self._run), self._strip_left
        text = self.finish()
        self._run, self._strip_left = run, left
        return text

    def _end_run(self) -> str:
        run, self._run = self._run, bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _stripped(self, text: str) -> str:
        while self._strip_left and text:
            if text[0] != self._strip:
                self._strip_left = 0
                break
            text = text[1:]
            self._strip_left -= 1
        return text


class WindowDetokenizer:
    """Any other decoder: what a token adds to the decoded text of the few before it."""

    def __init__(self, tokenizer: TextTokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._window: list[int] = []
        self._shown = 0  # characters of the window's text that have been returned

    def prime(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids[-_PRIMED:]:
            self.push(token_id)
        self.finish()

    def push(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode()
        if text.endswith("\ufffd") and len(self._window) < 2 * _WINDOW:
            return ""
        return self._advance(text)

    def finish(self) -> str:
        return self._advance(self._decode())

    def peek(self) -> str:
        return self._decode()[self._shown :]

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=self._skip_special)

    def _advance(self, text: str) -> str:
        new, self._shown = text[self._shown :], len(text)
        if len(self._window) >= 2 * _WINDOW:
            del self._window[:-_WINDOW]
            self._shown = len(self._decode())
        return new


def detokenizer_factory(tokenizer: TextTokenizer) -> Callable[[bool], Detokenizer]:
    """What makes detokenizers for this tokenizer's decoder; its argument is `skip_special_tokens`."""
    decoder = tokenizer.decoder or {}
    steps = decoder.get("decoders", ()) if decoder.get("type") == "Sequence" else ()
    kinds = [step["type"] for step in steps]
    if decoder.get("type") == "ByteLevel" or kinds == ["ByteLevel"]:

        @lru_cache(_CACHED_TOKENS)
        def spell(token_id: int, skip_special: bool) -> bytes:
            token = tokenizer.token(token_id)
            if token is None or (skip_special and tokenizer.is_special(token)):
                return b""
            return byte_level_bytes(token)

        return lambda skip: ByteLevelDetokenizer(lambda token_id: spell(token_id, skip))
    replaces = [step for step in steps if step["type"] == "Replace"]
    strips = [step for step in steps if step["type"] == "Strip"]
    plain = all("String" in step["pattern"] for step in replaces) and all(step["stop"] == 0 for step in strips)
    if plain and kinds in (
        ["Replace"] * len(replaces) + ["ByteFallback", "Fuse"],
        ["Replace"] * len(replaces) + ["ByteFallback", "Fuse", "Strip"],
    ):
        replacements = [(step["pattern"]["String"], step["content"]) for step in replaces]
        strip = (strips[0]["content"], strips[0]["start"]) if strips else ("", 0)
        return lambda skip: ByteFallbackDetokenizer(tokenizer, skip, replacements, strip)
    return lambda skip: WindowDetokenizer(tokenizer, skip)


def token_text(tokenizer: TextTokenizer, token_id: int) -> tuple[str, list[int] | None]:
    """How logprobs show one token: its text by itself, and the bytes it stands for (null for an id without a token)."""
    token = tokenizer.token(token_id)
    if token is None:
        return "", None
    decoder = tokenizer.decoder or {}
    if decoder.get("type") == "ByteLevel":
        data = byte_level_bytes(token)
    elif _BYTE_TOKEN.fullmatch(token):
        data = bytes([int(token[3:5], 16)])
    else:
        data = token.replace("▁", " ").encode()
    return data.decode(errors="replace"), list(data)
