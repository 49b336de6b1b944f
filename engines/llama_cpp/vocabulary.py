"""The gateway's tokenizer for a GGUF file, compared with llama.cpp's own."""

from __future__ import annotations

from typing import Any

from engines.errors import ModelError
from engines.llama_cpp.context import LoadedGguf

PROBES = (
    "Hello, world! It's 3.14159 o'clock; we've 1234567890 reasons.",
    "def add(a: int, b: int) -> int:\n    return a + b\n\n\nclass Tree:\n\tleft = right = None  # a\ttab\n",
    "  leading, trailing and   many     spaces  \n\n\n  \t \r\n",
    "Les œufs à la coque coûtent 2 €; naïve façade, Ångström, ſtraße, İstanbul, ÀÉÎÕÜ",
    "中文分词测试。日本語のテキスト、かなとカナ。한국어 문장입니다.",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया. สวัสดีชาวโลก",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 ∀x∈ℝ: ⌈x⌉ = −⌊−x⌋ ½ ﬁ ™ e\u0301 ｆｕｌｌ",
    '{"key": [1, 2.5e-3, null, true], "it\'s": "<b>&amp;</b>"} $x^2_{i}$ ```python\n```',
    "\u00a0\u200b\ufeff\u2028\x00\x07\x1b[0m\ufffd\U0001f9ff\U000e0041",
    "I'LL you'RE THEY'Ve camelCaseHTTPServer snake_case_name x86_64 0x1F 1,000,000.00",
)


def check_tokenizer(model: LoadedGguf, tokenizer: Any, name: str) -> None:
    """Compare what the tokenizer that gateways are given makes of probes with what llama.cpp makes of them.

    Raises:
        ModelError: quoting the first text where they differ.
    """
    backend = tokenizer.backend_tokenizer
    for text in [*PROBES, *_with_special_tokens(tokenizer)]:
        own, theirs = backend.encode(text, add_special_tokens=False).ids, model.tokenize(text)
        if own != theirs:
            at = next(
                (i for i, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), min(len(own), len(theirs))
            )
            raise ModelError(
                f"{name}: its tokenizer as Tandem reads it and llama.cpp's differ on {text!r}: "
                f"{own[at : at + 4]} and {theirs[at : at + 4]} from token {at} on"
            )


def _with_special_tokens(tokenizer: Any) -> list[str]:
    """Every special token between words and beside another, up to 64 of them."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special][:64]
    alone = [f"one{token}two {token} three{token}\n" for token in added]
    return [*alone, "".join(added)] if added else []
