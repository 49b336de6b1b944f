"""A tokenizer as bytes: what its tokens spell, and the tokens that spell a text which goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from engines.token_bytes import UnsupportedTokenizer, parts_of, speller
from protocol.worker_info import TokenizerInfo

_UNICODE_FORMS = ("NFC", "NFD", "NFKC", "NFKD")


class Speech:
    """Both directions of one tokenizer. Encoding holds no state, so threads may share it."""

    def __init__(self, info: TokenizerInfo) -> None:
        """Takes about a second for a vocabulary of 150,000. Raises UnsupportedTokenizer, or what the library raises."""
        document: dict[str, Any] = json.loads(info.tokenizer_json)
        whole = _opened(info.tokenizer_json)
        vocabulary = whole.get_vocab(with_added_tokens=True)
        added = whole.get_added_tokens_decoder()
        spell = speller(document, vocabulary)
        self.spelled = [b""] * (max(vocabulary.values(), default=-1) + 1)
        for token, token_id in vocabulary.items():
            self.spelled[token_id] = token.encode() if token_id in added else spell(token)
        self.special = frozenset(token_id for token_id, token in added.items() if token.special)
        self.stops = frozenset(info.stop_token_ids)
        end = vocabulary.get(info.eos_token) if info.eos_token is not None else None
        self.stop = end if end in self.stops else min(self.stops, default=None)
        self.begin = vocabulary.get(info.bos_token) if info.bos_token is not None else None
        self.vocabulary = vocabulary
        self._whole = whole
        self._going_on = _opened(json.dumps(_for_text_that_goes_on(document)))

    @cached_property
    def ids_by_bytes(self) -> dict[bytes, int]:
        """The token for every string that one spells: an ordinary one, else a special one."""
        found: dict[bytes, int] = {}
        by_byte: dict[bytes, int] = {}
        for token, token_id in self.vocabulary.items():
            spelled = self.spelled[token_id]
            if not spelled or token_id in self.special:
                continue
            one_of_bytes = len(spelled) == 1 and token.startswith("<0x")
            mine = by_byte if one_of_bytes else found
            mine[spelled] = min(token_id, mine.get(spelled, token_id))
        return {**by_byte, **found}

    @cached_property
    def _begins_with_space(self) -> bool:
        return self.spell(self._whole.encode("x", add_special_tokens=False).ids) == b" x"

    @cached_property
    def lead(self) -> list[int]:
        """What the tokenizer puts before every text of its own (a BOS)."""
        plain = self._whole.encode("x", add_special_tokens=False).ids
        full: list[int] = self._whole.encode("x", add_special_tokens=True).ids
        for start in range(len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                return full[:start]
        return []

    @cached_property
    def bytes_alone(self) -> list[int] | None:
        """The token of each byte alone; None if some byte has none."""
        ids = [token_id for byte in range(256) if (token_id := self.ids_by_bytes.get(bytes([byte]))) is not None]
        return ids if len(ids) == 256 else None

    def spell(self, token_ids: Iterable[int]) -> bytes:
        """Ids that are no token (a padded row of logits) spell nothing."""
        spelled, size = self.spelled, len(self.spelled)
        return b"".join([spelled[token_id] for token_id in token_ids if token_id < size])

    def encode_start(self, text: str) -> list[int]:
        """Tokens of a text with nothing before it, `lead` left out: some tokenizers put a space there."""
        return self.encode(f" {text}" if self._begins_with_space else text)

    def encode_prompt(self, text: str) -> list[int]:
        """Tokens of a rendered chat template, which says itself how it begins."""
        ids: list[int] = self._whole.encode(text, add_special_tokens=False).ids
        return ids

    def encode(self, text: str) -> list[int]:
        """Tokens of a text that goes on from another: nothing is put before it, and no character is changed."""
        ids: list[int] = self._going_on.encode(text, add_special_tokens=False).ids
        return ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each. Long lists are worked on by several threads, without the interpreter's lock."""
        return [one.ids for one in self._going_on.encode_batch_fast(list(texts), add_special_tokens=False)]


def _opened(tokenizer_json: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _for_text_that_goes_on(document: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer without what it does to the beginning of a text, and without Unicode normal forms, which
    would change characters that a model has written."""
    changed: dict[str, Any] = json.loads(json.dumps({**document, "model": None}))
    changed["post_processor"] = None
    normalizer = changed.get("normalizer")
    kept = []
    for part in parts_of(normalizer) if normalizer else []:
        kind = part["type"]
        if kind == "Replace":
            kept.append(part)
        elif kind not in ("Sequence", "Prepend", *_UNICODE_FORMS):
            raise UnsupportedTokenizer(f"its tokenizer normalises text by {kind}, so that its tokens are not the text")
    changed["normalizer"] = {"type": "Sequence", "normalizers": kept} if kept else None
    for part in parts_of(changed["pre_tokenizer"]) if changed.get("pre_tokenizer") else []:
        if part["type"] == "Metaspace":
            part["prepend_scheme"] = "never"
            part.pop("add_prefix_space", None)
        elif part["type"] == "ByteLevel":
            part["add_prefix_space"] = False
    changed["model"] = document["model"]
    return changed
