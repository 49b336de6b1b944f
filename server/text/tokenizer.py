"""The target's tokenizer, from its tokenizer.json alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from protocol.worker_info import TokenizerInfo


class TextTokenizer:
    """Encodes and decodes; both hold no state, so one object serves all requests and threads."""

    def __init__(self, info: TokenizerInfo) -> None:
        """Takes up to a second for a large vocabulary. Raises ValueError if tokenizer.json is not one."""
        try:
            self._tokenizer = Tokenizer.from_str(info.tokenizer_json)
            spec = json.loads(info.tokenizer_json)
        except Exception as error:  # the bindings raise plain Exception
            raise ValueError(f"tokenizer.json of {info.model_id!r} cannot be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.decoder: dict[str, Any] | None = spec.get("decoder")
        self.vocabulary_size = info.vocabulary.size
        # By content and not by id, as the library itself does for `skip_special_tokens`.
        self.special_ids: dict[str, int] = {
            token["content"]: token["id"] for token in spec.get("added_tokens", ()) if token["special"]
        }

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`. Special tokens written out in it become those tokens, as in vLLM.

        Megabytes take seconds: call it in a thread. The batch form is used because it alone releases the GIL.
        """
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling, null for an id that has none (a padded row of logits)."""
        token: str | None = self._tokenizer.id_to_token(token_id)
        return token

    def is_special(self, token: str) -> bool:
        return token in self.special_ids
