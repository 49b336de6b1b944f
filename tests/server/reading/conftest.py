from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.server.text_models import text_model


@pytest.fixture(scope="session")
def byte_by_byte() -> Callable[[str], list[str]]:
    """A text in the pieces that a detokenizer makes of it where each token is one byte, in mid-character too."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: place for place, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    model = text_model(tokenizer)

    def pieces(text: str) -> list[str]:
        ids = model.tokenizer.encode(text, add_special_tokens=False)
        assert len(ids) == len(text.encode())
        detokenizer = model.detokenizer(False)
        return [*map(detokenizer.push, ids), detokenizer.finish()]

    return pieces
