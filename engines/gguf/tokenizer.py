"""The tokenizer of a GGUF file.

A GGUF file has a vocabulary, merges, and the name of the way in which text is split before merging, not a
tokenizer.json. Names, splits and defaults are those of llama.cpp, which reads the same files.
"""

from __future__ import annotations

from typing import Any

from engines.errors import ModelError
from engines.gguf.reader import Metadata

_PREFIX = "tokenizer.ggml."
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
# Ways of splitting whose vocabularies are looked up whole before merging, and begin with a BOS unless the file denies.
WHOLE_WORDS_AND_BOS = frozenset({
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
    "tekken",
})  # fmt: skip
# GPT-2's way; and the same after every digit was set apart.
GPT2 = frozenset({"gpt-2", "olmo"})
DIGITS_APART = frozenset({"smollm", "starcoder", "refact", "command-r"})
# Say nothing that encoding or decoding needs: ids of tokens that the vocabulary has by name, and other tasks' settings.
_HARMLESS = frozenset({
    "tokenizer.ggml.scores", "tokenizer.ggml.token_type_count", "tokenizer.ggml.seperator_token_id",
    "tokenizer.ggml.cls_token_id", "tokenizer.ggml.mask_token_id", "tokenizer.ggml.add_sep_token",
    "tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.fim_mid_token_id",
    "tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id",
    "tokenizer.ggml.prefix_token_id", "tokenizer.ggml.suffix_token_id", "tokenizer.ggml.middle_token_id",
    "tokenizer.ggml.remove_extra_whitespaces",  # for unigram vocabularies
    "tokenizer.huggingface.json",  # the same vocabulary once more; llama.cpp does not read it
})  # fmt: skip


def build_tokenizer(metadata: Metadata, arch: str) -> Any:
    """A transformers tokenizer (PreTrainedTokenizerFast) with the file's special tokens and chat templates.

    Raises:
        ModelError: where the file has none, or one whose way of splitting text is not known here.
    """
    from transformers import PreTrainedTokenizerFast

    kind = metadata.need(_PREFIX + "model")
    tokens: list[str] = list(metadata.need(_PREFIX + "tokens"))
    types: list[int] = [int(value) for value in metadata.get(_PREFIX + "token_type") or ()]
    if types and len(types) != len(tokens):
        raise ModelError(f"its GGUF metadata has {len(tokens)} tokens and {len(types)} types of tokens")
    tokens, types = _without_padding(tokens, types)
    if kind == "gpt2":
        backend, add_bos = _byte_level(metadata, tokens)
    elif kind == "llama":
        backend, add_bos = _sentencepiece(metadata, arch, tokens), True
    else:
        raise ModelError(f"its tokenizer is of kind {kind} in GGUF's words, which is not supported")
    _add_tokens(backend, tokens, types, rstrip=kind == "llama" and arch == "phi3")
    named = {name: tokens[token_id] for name, token_id in special_ids(metadata, len(tokens)).items()}
    add_bos = bool(metadata.get(_PREFIX + "add_bos_token", add_bos))
    add_eos = bool(metadata.get(_PREFIX + "add_eos_token", False))
    if add_bos and "bos_token" not in named:
        raise ModelError("its tokenizer begins texts with a BOS token, and its GGUF metadata does not say which")
    if add_eos and "eos_token" not in named:
        raise ModelError("its tokenizer ends texts with an EOS token, and its GGUF metadata does not say which")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        add_bos_token=add_bos,
        add_eos_token=add_eos,
        clean_up_tokenization_spaces=False,
        **{name: named.get(name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")},
    )
    tokenizer.chat_template = _templates(metadata)
    unread = [key for key in metadata.unread("tokenizer.") if key not in _HARMLESS]
    if unread:
        raise ModelError(f"its metadata says {unread[0]}, which is not known for tokenizers; it would be dropped")
    return tokenizer


def _without_padding(tokens: list[str], types: list[int]) -> tuple[list[str], list[int]]:
    """Without what llama.cpp's converter calls the rows of logits that have no token: [PAD151665], … at the end.

    The model's own tokenizer does not know them, and a vocabulary is to be the same in all formats.
    """
    count = len(tokens)
    while count and types and types[count - 1] == _UNUSED and tokens[count - 1] == f"[PAD{count - 1}]":
        count -= 1
    return tokens[:count], types[:count]


def special_ids(metadata: Metadata, count: int) -> dict[str, int]:
    """Ids by transformers' names, those of a SentencePiece vocabulary where llama.cpp has defaults for it.

    Raises:
        ModelError: for an id that the vocabulary does not have.
    """
    defaults = {"bos_token": 1, "eos_token": 2, "unk_token": 0} if metadata.get(_PREFIX + "model") == "llama" else {}
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    found: dict[str, int] = {}
    for name, key in keys.items():
        token_id = metadata.get(f"{_PREFIX}{key}_token_id", defaults.get(name))
        if token_id is None or int(token_id) in (-1, 2**32 - 1):  # as "none" is written
            continue
        if not 0 <= int(token_id) < count:
            raise ModelError(f"{_PREFIX}{key}_token_id is {token_id}, of {count} tokens")
        found[name] = int(token_id)
    return found


def stop_ids(metadata: Metadata, count: int) -> list[int]:
    """Ids that end an answer: the ends of a text, of a turn and of a message, where the file names them."""
    ids = set()
    for key in ("eos", "eot", "eom"):
        token_id = metadata.get(f"{_PREFIX}{key}_token_id")
        if token_id is not None and 0 <= int(token_id) < count:
            ids.add(int(token_id))
    if not ids and "eos_token" in (named := special_ids(metadata, count)):
        ids.add(named["eos_token"])
    return sorted(ids)


def _byte_level(metadata: Metadata, tokens: list[str]) -> tuple[Any, bool]:
    """Byte-level BPE, and whether texts begin with a BOS token unless the file says otherwise."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    way = metadata.get(_PREFIX + "pre")
    metadata.get(_PREFIX + "add_space_prefix")  # for SentencePiece vocabularies
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelError("its GGUF vocabulary has a token twice, which is not supported")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.need(_PREFIX + "merges")]
    try:
        model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=way in WHOLE_WORDS_AND_BOS)
    except Exception as error:  # the bindings raise plain Exception
        raise ModelError(f"its GGUF vocabulary is no byte-level one: {error}") from error
    backend = Tokenizer(model)
    backend.decoder = decoders.ByteLevel()
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    as_gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if way in GGUF_PRE_TOKENIZER_SPLITS:
        split = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[way]), behavior="isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_alone])
    elif way in GPT2:
        backend.pre_tokenizer = as_gpt2
    elif way in DIGITS_APART:
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), as_gpt2])
    else:
        known = ", ".join(sorted({*GGUF_PRE_TOKENIZER_SPLITS, *GPT2, *DIGITS_APART}))
        raise ModelError(
            f"its tokenizer splits text in the way {way or 'that its GGUF metadata leaves out'!r} "
            f"(tokenizer.ggml.pre); known are {known}"
        )
    return backend, way in WHOLE_WORDS_AND_BOS


def _sentencepiece(metadata: Metadata, arch: str, tokens: list[str]) -> Any:
    """BPE of SentencePiece, merges derived from the tokens' scores where the file has none, as transformers does."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import select_tokenizer_builder

    described: dict[str, Any] = {"tokens": tokens, "tokenizer_type": "llama"}
    for name in ("merges", "scores"):
        if (values := metadata.get(_PREFIX + name)) is not None:
            described[name] = list(values)
    if "merges" not in described and len(described.get("scores", ())) != len(tokens):
        raise ModelError("its GGUF metadata has neither merges nor a score for every token")
    metadata.get(_PREFIX + "pre")
    backend = select_tokenizer_builder(arch, "llama")(described).backend_tokenizer
    prefixed = bool(metadata.get(_PREFIX + "add_space_prefix", not arch.startswith("gemma")))
    if not prefixed and not arch.startswith("gemma"):
        from tokenizers import decoders, pre_tokenizers

        backend.normalizer = None
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never", split=False)
        backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _add_tokens(backend: Any, tokens: list[str], types: list[int], *, rstrip: bool) -> None:
    """Tokens that text is searched for before it is split, all of them known already.

    `rstrip`: those of Phi-3 take the spaces after them, but for these that llama.cpp names.
    """
    from tokenizers import AddedToken

    before = backend.get_vocab_size()
    added: list[AddedToken] = []
    for token, kind in zip(tokens, types, strict=False):
        if kind not in (_CONTROL, _USER_DEFINED) or not token:
            continue
        takes = rstrip and kind == _CONTROL and token not in ("<unk>", "<s>", "<|endoftext|>")
        added.append(AddedToken(token, special=kind == _CONTROL, normalized=False, rstrip=takes))
    backend.add_tokens(added)  # all at once: each call builds the search anew, and some files have thousands
    if backend.get_vocab_size() != before:
        raise ModelError("its GGUF vocabulary has special tokens that it spells in two ways")


def _templates(metadata: Metadata) -> str | dict[str, str] | None:
    """The chat template, or where there are others beside it, all by name."""
    default: str | None = metadata.get("tokenizer.chat_template")
    metadata.get("tokenizer.chat_templates")  # their names, which the keys have too
    others: dict[str, str] = {
        key.removeprefix("tokenizer.chat_template."): metadata.get(key)
        for key in metadata.below("tokenizer.chat_template.")
    }
    if not others:
        return default
    return others | ({"default": default} if default is not None else {})
