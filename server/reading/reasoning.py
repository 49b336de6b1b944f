"""Models that think aloud first: which tags they think between, what is reasoning and what is the answer.

docs/structured_output.md has the formats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Start = Literal["outside", "inside", "closed"]


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """`special`: the tags are special tokens, which must stay in the text (skip_special_tokens off) to be seen.

    `hidden`: marks around the answer itself, which are layout. `channels`: thoughts, calls and answers are messages of
    one form (server.reading.harmony), whose marks these are.
    """

    name: str
    opener: str
    closer: str
    special: bool = False
    hidden: tuple[str, ...] = ()
    channels: bool = False


FORMATS: dict[str, ReasoningFormat] = {
    "think": ReasoningFormat("think", "<think>", "</think>"),  # DeepSeek-R1, Qwen3, QwQ, SmolLM3
    "seed": ReasoningFormat("seed", "<seed:think>", "</seed:think>"),
    "magistral": ReasoningFormat("magistral", "[THINK]", "[/THINK]", special=True),
    "command_a": ReasoningFormat(
        "command_a", "<|START_THINKING|>", "<|END_THINKING|>", hidden=("<|START_RESPONSE|>", "<|END_RESPONSE|>")
    ),
    "gemma4": ReasoningFormat("gemma4", "<|channel>thought\n", "<channel|>"),
    "harmony": ReasoningFormat("harmony", "<|channel|>", "<|message|>", channels=True),  # gpt-oss
}


def choose(chat_template: str, setting: str = "auto") -> ReasoningFormat | None:
    """The format that the template speaks of; `setting` names one of FORMATS, or is "auto" or "none".

    Raises ValueError, naming what there is, if there is no such format.
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


@dataclass(frozen=True, slots=True)
class Split:
    """One of the two may be empty, or both."""

    reasoning: str = ""
    content: str = ""


class ReasoningSplitter:
    """The text up to the closing tag is reasoning, what follows is content, both as they are; tags belong to neither.

    Outside of a thought, only an opening tag with nothing but whitespace before it opens one (later ones are content).
    Inside, a model that repeats the tag which its prompt ended with is taken at its word. A thought that never closes
    is all reasoning. The pieces may be cut anywhere: what comes out, joined, is the same.
    """

    def __init__(self, form: ReasoningFormat, start: Start) -> None:
        self._form = form
        self._where: str = {"outside": "before", "inside": "opened", "closed": "after"}[start]
        self._started_inside = start == "inside"
        self._held = ""

    @property
    def held(self) -> int:
        """How many of the last characters may still be told."""
        return len(self._held)

    def feed(self, text: str) -> Split:
        held = self._held + text
        self._held = ""
        if self._where in ("before", "opened"):
            held = self._open(held)
        if self._where == "thinking":
            return self._think(held)
        if self._where == "after":
            return Split(content=held)
        self._held = held
        return Split()

    def finish(self) -> Split:
        """What was held back for the tag that it might have begun."""
        held, self._held = self._held, ""
        return Split(reasoning=held) if self._where in ("opened", "thinking") else Split(content=held)

    def _open(self, held: str) -> str:
        """Decides how the text begins as soon as that can be known; returns what is left to read."""
        rest = held.lstrip()
        opener = self._form.opener
        if rest.startswith(opener):
            self._where = "thinking"
            return rest[len(opener) :]
        if not opener.startswith(rest):  # an empty rest is a prefix too: wait
            self._where = "thinking" if self._started_inside else "after"
        return held

    def _think(self, held: str) -> Split:
        closer = self._form.closer
        end = held.find(closer)
        if end >= 0:
            self._where = "after"
            return Split(held[:end], held[end + len(closer) :])
        keep = next((n for n in range(min(len(closer) - 1, len(held)), 0, -1) if closer.startswith(held[-n:])), 0)
        self._held = held[len(held) - keep :]
        return Split(reasoning=held[: len(held) - keep])


def split(form: ReasoningFormat, start: Start, text: str) -> Split:
    """A whole answer at once."""
    splitter = ReasoningSplitter(form, start)
    first, last = splitter.feed(text), splitter.finish()
    return Split(first.reasoning + last.reasoning, first.content + last.content)
