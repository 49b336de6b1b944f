"""What to use instead of the torch engine: the end of every sentence that refuses a model."""

from __future__ import annotations

from engines.errors import ModelError

GGUF_ARCHITECTURES = {
    "bloom": "bloom", "chameleon": "chameleon", "deepseek_ocr2": "deepseek2-ocr", "falcon": "falcon", "gptj": "gptj",
    "glm_moe_dsa": "glm-dsa", "hunyuan_vl_text": "hunyuan_vl", "kimi_linear": "kimi-linear", "llama4_text": "llama4",
    "mistral4": "mistral4", "mpt": "mpt", "nemotron": "nemotron", "qwen2_5_omni_text": "qwen2vl",
    "stablelm": "stablelm", "step3p5": "step35",
}  # fmt: skip
"""Types of transformers that are refused, and what llama.cpp calls them."""


def refused(kind: str, what: str) -> ModelError:
    """The refusal of a model of type `kind`: `what` says of it, as a clause, which part is not computed."""
    return ModelError(f"{what}, which the torch engine does not compute; {instead(kind)}")


def instead(kind: str | None = None) -> str:
    """What to use for a model of this type of transformers."""
    if kind in GGUF_ARCHITECTURES:
        return "choose engine vllm, or engine llama_cpp with a GGUF file of it"
    return "choose engine vllm"
