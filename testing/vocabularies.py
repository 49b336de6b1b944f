"""Tokenizers of other families than the bundled model's, trained where they are needed, and models that speak them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from engines.tokenizer import fingerprint_vocabulary
from protocol.worker_info import TokenizerInfo, Vocabulary

CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def qwen_like(texts: Sequence[str], size: int = 600, specials: Sequence[str] = CHATML) -> Tokenizer:
    """A byte-level BPE that splits and normalises text as Qwen2's does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def llama_like(texts: Sequence[str], size: int = 600) -> Tokenizer:
    """A SentencePiece BPE as Llama 2's: "▁" for a space, one before every text, bytes for what it has no token for."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("▁?[^▁]+|▁"), "isolated")
    control = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>"], limit_alphabet=120, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    words = [word for word in sorted(trained["vocab"], key=trained["vocab"].get) if word not in control]
    merges = [(one, other) for one, other in trained["merges"]]
    vocabulary = {word: index for index, word in enumerate([*control, *words])}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def tokenizer_info(tokenizer: Tokenizer, bos: str | None = None, eos: str | None = None) -> TokenizerInfo:
    """What a worker would answer at /v1/tokenizer."""
    ids = tokenizer.get_vocab(with_added_tokens=True)
    size = max(ids.values()) + 1
    return TokenizerInfo(
        model_id="made here",
        tokenizer_json=tokenizer.to_str(),
        chat_template=None,
        bos_token=bos,
        eos_token=eos,
        special_tokens={},
        stop_token_ids=[ids[eos]] if eos is not None else [],
        vocabulary=Vocabulary(fingerprint=fingerprint_vocabulary(ids), size=size, logits_size=size),
        context_length=2048,
    )


def model_that_speaks(folder: Path, tokenizer: Tokenizer, bos: str | None, eos: str, **tiny: Any) -> Path:
    """A tiny random model with this tokenizer."""
    from transformers import PreTrainedTokenizerFast

    from testing.tiny_models import make_tiny_model

    make_tiny_model(folder, vocabulary=max(tokenizer.get_vocab().values()) + 1, **tiny)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=eos).save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        if (file := folder / name).is_file():
            config = json.loads(file.read_text())
            file.write_text(json.dumps({**config, "bos_token_id": None, "eos_token_id": tokenizer.token_to_id(eos)}))
    return folder


def permuted(source: Path, folder: Path, seed: int = 0) -> Path:
    """The model of `source` under other ids: it generates the same text, and shares no id with it."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    size = config["vocab_size"]
    document = json.loads((source / "tokenizer.json").read_text())
    count = max(max(document["model"]["vocab"].values()), *(token["id"] for token in document["added_tokens"])) + 1
    moved = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist() + list(range(count, size))
    document["model"]["vocab"] = {token: moved[index] for token, index in document["model"]["vocab"].items()}
    document["added_tokens"] = sorted(
        ({**token, "id": moved[token["id"]]} for token in document["added_tokens"]), key=lambda token: token["id"]
    )
    tokenizer = AutoTokenizer.from_pretrained(source)
    changed = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(document)),
        eos_token=tokenizer.eos_token,
        bos_token=tokenizer.bos_token,
        chat_template=tokenizer.chat_template,
    )
    changed.save_pretrained(folder)
    weights = load_file(source / "model.safetensors")
    rows = torch.tensor(moved)
    for name, tensor in weights.items():
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            weights[name] = torch.empty_like(tensor).index_copy_(0, rows, tensor)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    ends = {"bos_token_id": None, "eos_token_id": changed.convert_tokens_to_ids(tokenizer.eos_token)}
    (folder / "config.json").write_text(json.dumps({**config, **ends}))
    return folder
