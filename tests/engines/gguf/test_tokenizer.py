"""Tokenizers of GGUF files: special tokens, BOS, ways of splitting, templates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines.errors import ModelError
from engines.gguf.reader import Metadata
from engines.gguf.tokenizer import build_tokenizer, stop_ids
from tests.engines.gguf.gguf_files import byte_level_keys


def built(arch: str = "llama", pre: str = "gpt-2", **more: Any) -> Any:
    return build_tokenizer(Metadata(byte_level_keys(pre, **more)), arch)


def sentencepiece_keys(**more: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]
    types = [2, 3, 3, *[6] * 256]
    pieces = ["▁", "t", "h", "e", "th", "the", "▁the", "<|user|>", "<think>"]
    tokens += pieces
    types += [1] * 7 + [3, 4]
    scores = [0.0] * 259 + [-9.0, -8.0, -7.0, -6.0, -3.0, -2.0, -1.0, 0.0, 0.0]
    keys = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores, **more}
    return {f"tokenizer.ggml.{name}": value for name, value in keys.items()}


@pytest.mark.parametrize(
    ("pre", "more", "expected"),
    [
        ("gpt-2", {}, False),  # a byte-level vocabulary begins with none,
        ("gpt-2", {"add_bos_token": True}, True),  # unless the file says so;
        ("llama-bpe", {}, True),  # Llama 3's begins with one,
        ("tekken", {}, True),
        ("llama-bpe", {"add_bos_token": False}, False),  # unless the file says not so.
        ("qwen2", {}, False),
    ],
)
def test_bos_begins_a_text_where_the_file_or_its_kind_says_so(pre: str, more: dict[str, Any], expected: bool) -> None:
    tokenizer = built(pre=pre, **more)
    ids = tokenizer.backend_tokenizer.encode("the", add_special_tokens=True).ids
    assert (ids[0] == 0) is expected
    assert tokenizer.backend_tokenizer.encode("the", add_special_tokens=False).ids == ids[expected:]


def test_eos_ends_a_text_only_where_the_file_says_so() -> None:
    assert built(add_eos_token=True).backend_tokenizer.encode("the").ids[-1] == 1
    assert built().backend_tokenizer.encode("the").ids[-1] != 1


def test_sentencepiece_begins_with_bos_and_a_space() -> None:
    def ids(arch: str = "llama", **more: Any) -> list[str]:
        tokenizer = build_tokenizer(Metadata(sentencepiece_keys(**more)), arch)
        found: list[str] = tokenizer.backend_tokenizer.encode("the").tokens
        return found

    assert ids() == ["<s>", "▁the"]
    assert ids(add_bos_token=False) == ["▁the"]
    assert ids(add_space_prefix=False) == ["<s>", "the"]
    tokenizer = build_tokenizer(Metadata(sentencepiece_keys(add_space_prefix=False)), "llama")
    assert tokenizer.backend_tokenizer.decode(tokenizer.backend_tokenizer.encode(" the é").ids) == " the é"


def test_special_tokens_of_any_spelling_stay_whole() -> None:
    """As DeepSeek's, whose bars and spaces are letters of three bytes; transformers' own conversion cuts them up."""
    keys = byte_level_keys()
    keys["tokenizer.ggml.tokens"][0] = "<｜begin▁of▁sentence｜>"
    keys["tokenizer.ggml.token_type"][3] = 4
    tokenizer = build_tokenizer(Metadata(keys), "llama")
    assert tokenizer.backend_tokenizer.encode("<｜begin▁of▁sentence｜>the<|eos|>").ids[0] == 0
    assert tokenizer.backend_tokenizer.encode("the<|eos|>").ids[-1] == 1
    added = json.loads(tokenizer.backend_tokenizer.to_str())["added_tokens"]
    assert {token["content"] for token in added if token["special"]} == {
        "<｜begin▁of▁sentence｜>",
        "<|eos|>",
        "<|pad|>",
    }


def test_digits_stand_apart_where_the_vocabulary_was_learned_so() -> None:
    def tokens(pre: str) -> list[str]:
        found: list[str] = built(pre=pre).backend_tokenizer.encode("a 12", add_special_tokens=False).tokens
        return found

    assert tokens("gpt-2") == ["a", "Ġ", "12"]
    assert tokens("smollm") == ["a", "Ġ", "1", "2"]
    assert tokens("refact") == tokens("smollm")


def test_words_in_the_vocabulary_are_not_merged_anew_with_llama_3() -> None:
    keys = byte_level_keys("llama-bpe")
    keys["tokenizer.ggml.tokens"][-1] = "fox"  # no merges lead to it
    keys["tokenizer.ggml.token_type"][-1] = 1
    assert build_tokenizer(Metadata(keys), "llama").backend_tokenizer.encode("fox").tokens[-1] == "fox"
    keys["tokenizer.ggml.pre"] = "qwen2"
    assert build_tokenizer(Metadata(keys), "llama").backend_tokenizer.encode("fox").tokens[-1] == "x"


def test_phi_3s_special_tokens_take_the_spaces_after_them() -> None:
    def ids(arch: str) -> list[int]:
        tokenizer = build_tokenizer(Metadata(sentencepiece_keys()), arch)
        found: list[int] = tokenizer.backend_tokenizer.encode("<|user|>\n").ids
        return found

    user = sentencepiece_keys()["tokenizer.ggml.tokens"].index("<|user|>")
    assert ids("phi3") == [1, user]
    assert ids("llama")[:2] == [1, user]
    assert ids("llama")[-1] == 3 + ord("\n")


def test_templates_keep_their_names() -> None:
    keys = byte_level_keys()
    assert build_tokenizer(Metadata({**keys}), "llama").chat_template is None
    keys["tokenizer.chat_template"] = "D"
    assert build_tokenizer(Metadata({**keys}), "llama").chat_template == "D"
    named = {**keys, "tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "T"}
    assert build_tokenizer(Metadata(named), "llama").chat_template == {"default": "D", "tool_use": "T"}


def test_ends_of_turns_and_messages_are_stops() -> None:
    assert stop_ids(Metadata(byte_level_keys(eot_token_id=7, eom_token_id=8)), 300) == [1, 7, 8]
    assert stop_ids(Metadata(sentencepiece_keys()), 268) == [2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "a token twice"),
        ({"token_type": [1, 1, 1]}, "3 types of tokens"),
        ({"merges": ["q zzz"]}, "no byte-level one"),
    ],
)
def test_vocabularies_that_contradict_themselves(changes: dict[str, Any], message: str) -> None:
    keys = byte_level_keys(bos_token_id=None, eos_token_id=None, padding_token_id=None)
    keys |= {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    with pytest.raises(ModelError, match=message):
        build_tokenizer(Metadata(keys), "llama")
