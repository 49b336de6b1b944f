"""The gateway's text model of a tokenizer that a test made."""

from __future__ import annotations

from tokenizers import Tokenizer

from protocol.worker_info import TokenizerInfo, Vocabulary
from server.text.model import TextModel


def text_model(tokenizer: Tokenizer) -> TextModel:
    size = tokenizer.get_vocab_size()
    return TextModel(
        TokenizerInfo(
            model_id="m",
            tokenizer_json=tokenizer.to_str(),
            chat_template=None,
            bos_token=None,
            eos_token=None,
            special_tokens={},
            stop_token_ids=[],
            vocabulary=Vocabulary(fingerprint="v", size=size, logits_size=size),
            context_length=100,
        )
    )
