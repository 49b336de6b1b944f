"""The proposer and the draft worker read one vocabulary out of one model's files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from engines.models import ModelFiles
from engines.tokenizer import fingerprint_vocabulary, load_tokenizer
from engines.vllm.proposer.vocabulary import VocabularyCheck
from protocol.messages import PROTOCOL_VERSION
from testing.tiny_models import make_tiny_model


@pytest.mark.parametrize("named", ["LlamaTokenizer", "PreTrainedTokenizerFast", "BertTokenizer"])
def test_the_file_counts_on_both_sides(named: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "tiny", layers=1)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": named}))
    theirs = fingerprint_vocabulary(load_tokenizer(ModelFiles("tiny", folder)).get_vocab())
    config = SimpleNamespace(tokenizer=str(folder), tokenizer_revision=None, trust_remote_code=False)
    info = {"role": "draft", "protocol": PROTOCOL_VERSION, "id": "d", "vocabulary": {"fingerprint": theirs}}
    assert VocabularyCheck(config, True)(info) is None
    other = {**info, "vocabulary": {"fingerprint": "0" * 32}}
    assert "another than the target's" in str(VocabularyCheck(config, True)(other))
