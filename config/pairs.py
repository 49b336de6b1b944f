"""The built-in pairs: naming a target alone picks the draft that goes with it, and γ."""

from __future__ import annotations

import re
from dataclasses import dataclass

from basics.names import LOOKUP

BUNDLED = "SmolLM2-135M-Instruct"
BUNDLED_DRAFT = "bundled-draft"
"""Trained for the bundled model's very weights, which no other copy of that model has."""
DEFAULT_DRAFT_TOKENS = 5


@dataclass(frozen=True, slots=True)
class Pair:
    """A target, the drafter that goes with it (a model's id or `lookup`), and γ."""

    target: str
    draft: str
    draft_tokens: int


PAIRS = (
    # It has no smaller sibling with its vocabulary; for the bundled copy see BUNDLED_DRAFT.
    Pair(f"HuggingFaceTB/{BUNDLED}", LOOKUP, 5),
    Pair("Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", 5),
    Pair("Qwen/Qwen3-32B", "Qwen/Qwen3-1.7B", 5),
    Pair("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.2-3B-Instruct", 4),
    Pair("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct", 3),
    Pair("Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen2.5-7B-Instruct", 4),
    Pair("facebook/opt-1.3b", "facebook/opt-350m", 5),
    Pair("EleutherAI/pythia-2.8b", "EleutherAI/pythia-70m", 5),
)

_GGUF_SUFFIX = re.compile(r"(?:[-.](?:i?q\d\w*|bf16|f16|f32|fp16))?(?:-\d{5}-of-\d{5})?\.gguf$")


def base_name(model: str) -> str:
    """The model's name without owner, folders, GGUF quantisation or capitals: how models are matched."""
    name = model.strip().rstrip("/\\").replace("\\", "/").rpartition("/")[2].lower()
    return _GGUF_SUFFIX.sub("", name).removeprefix("meta-")


def is_bundled(name: str) -> bool:
    return name.lower() in ("bundled", BUNDLED.lower())


def pair_for(target: str) -> Pair:
    """The pair for a target given as an id, a bare name, a folder or a GGUF file; an unknown one drafts by lookup."""
    wanted = base_name(target)
    for pair in PAIRS:
        if base_name(pair.target) == wanted:
            return Pair(target, pair.draft, pair.draft_tokens)
    return Pair(target, LOOKUP, DEFAULT_DRAFT_TOKENS)


def full_id(model: str) -> str:
    """The Hugging Face id of a model of the table named without its owner; any other name as it is.

    The bundled model's bare name stays: it needs no download.
    """
    if "/" in model or "\\" in model or base_name(model) == BUNDLED.lower() or model.endswith(".gguf"):
        return model
    for pair in PAIRS:
        for known in (pair.target, pair.draft):
            if known != LOOKUP and base_name(known) == base_name(model):
                return known
    return model
