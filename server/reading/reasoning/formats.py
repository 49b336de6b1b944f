"""Which tags a model thinks between, read off its chat template and the prompt that it made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Start = Literal["outside", "inside", "closed"]


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """`special`: the tags are special tokens, which must stay in the text (skip_special_tokens off) to be seen."""

    name: str
    opener: str
    closer: str
    special: bool = False


FORMATS: dict[str, ReasoningFormat] = {
    "think": ReasoningFormat("think", "<think>", "</think>"),  # DeepSeek-R1, Qwen3, QwQ, SmolLM3
    "seed": ReasoningFormat("seed", "<seed:think>", "</seed:think>"),
    "magistral": ReasoningFormat("magistral", "[THINK]", "[/THINK]", special=True),
}


def choose(chat_template: str, setting: str = "auto") -> ReasoningFormat | None:
    """The format that the template speaks of; `setting` names one of FORMATS, or is "auto" or "none".

    Raises ValueError, naming what there is, where there is no such format.
    """
    if setting == "none":
        return None
    if setting != "auto":
        if setting not in FORMATS:
            raise ValueError(f"no reasoning format {setting!r}: choose auto, none or one of {', '.join(FORMATS)}")
        return FORMATS[setting]
    return next((form for form in FORMATS.values() if form.closer in chat_template), None)


def start_of(form: ReasoningFormat, prompt: str) -> Start:
    """Where the answer begins: inside a thought that the prompt opened, after one that it closed, or outside.

    DeepSeek-R1's template ends a prompt with <think>; Qwen3's, with thinking off, with <think>\\n\\n</think>\\n\\n.
    """
    end = prompt.rstrip()
    if end.endswith(form.opener):
        return "inside"
    if end.endswith(form.closer):
        return "closed"
    return "outside"
