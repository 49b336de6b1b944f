"""A byte-level tokenizer of a few hundred tokens, special ones and padding included, and a compiler over it."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from engines.grammar.compiler import GrammarCompiler
from testing.patience import PATIENCE

LOGITS_SIZE = 500  # beyond the vocabulary: padded rows
CORPUS = [
    '{"name": "Anna", "age": 12, "tags": ["a", "b"], "ok": true, "no": false, "none": null, "x": -1.5e3}',
    "the quick brown fox jumps over the lazy dog; yes, no, maybe",
] * 20


def train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|start|>", "[TOOL_CALLS]"]
    trainer = BpeTrainer(
        vocab_size=440,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("</tool_call>", special=False)])
    return tokenizer


def make_compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    made = GrammarCompiler.from_tokenizer_json(tokenizer.to_str(), LOGITS_SIZE, [0])
    made._reading._max_seconds = PATIENCE  # of wall time: only what bounds the computing is tested
    return made


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer()


@pytest.fixture(scope="session")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return make_compiler(tokenizer)
