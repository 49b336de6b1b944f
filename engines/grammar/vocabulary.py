"""The bytes of every token, which is how a grammar sees a vocabulary."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import xgrammar
from tokenizers import Tokenizer

from engines.token_bytes import UnsupportedTokenizer, speller

# No UTF-8 text holds this byte, so no token that begins with it is part of what a grammar spells out.
UNSPELLABLE = b"\xff"


def token_bytes(tokenizer_json: str, logits_size: int) -> list[bytes]:
    """Each token's bytes, from a tokenizer.json's text; ids up to `logits_size` that are no token get none.

    Special tokens (<|im_start|> and the like) are not text: a decoder leaves them out, so a string that a grammar
    allowed to contain one would not be the string that the client reads. Only a structural tag that names a special
    token by its id reaches it. Raises UnsupportedTokenizer if tokens have no definite bytes (WordPiece, word level).
    """
    tokenizer = Tokenizer.from_str(tokenizer_json)
    ids = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    spell = speller(json.loads(tokenizer_json), ids)
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
