"""The stream of prompts that the target answers: the data's, its own questions, and follow-ups on its answers."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from training.data import Entry
from training.sampler import Answer, Prompt

SELF = "self"
_ASK = "ask"
_MARK = "\u2063question\u2063"
_LONGEST_QUESTION = 192
_QUESTION_TEMPERATURE = 0.9
FOLLOW_UPS = (
    "Make it shorter.", "Can you say more about that?", "Explain that to a child.", "Give me an example.",
    "Write that again as a list.", "Continue.", "Are you sure?", "Why?", "Thank you! Is there anything else?",
    "Rewrite your answer in a formal style.", "Put the main points into a table.", "Repeat that word for word.",
    "Translate your answer into Spanish.", "Correct the mistakes in what you wrote.", "Add a title.",
    "Now write it as a poem.", "Summarize your answer in one sentence.", "Change it so that it is more friendly.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mixture:
    """`self_share`: of all prompts that aren't follow-ups, how many are the target's own questions; `follow_up_share`:
    after how many answers to a chat a follow-up is asked; `temperatures` are drawn from with equal chances."""

    temperatures: tuple[float, ...] = (0.0, 0.0, 0.5, 0.7, 0.7, 1.0)
    self_share: float = 0.3
    follow_up_share: float = 0.2
    most_new_tokens: int = 384


class PromptSource:
    """An endless stream of prompts over shuffled data; `take` looks at each answer, which may lead to a next prompt."""

    def __init__(self, tokenizer: Any, entries: Sequence[Entry], mixture: Mixture, seed: int, longest: int) -> None:
        self._tokenizer, self._mixture = tokenizer, mixture
        self._draw = random.Random(seed)
        self._entries = list(entries)
        self._longest = longest
        self._waiting: deque[Prompt] = deque()
        self._chats: dict[tuple[int, ...], tuple[tuple[str, str], ...]] = {}
        self._question = self._question_prefix() if tokenizer.chat_template else None

    def __iter__(self) -> Iterator[Prompt]:
        while True:
            self._draw.shuffle(self._entries)
            if not self._entries and self._question is None:
                return
            round_of: list[Entry | None] = list(self._entries) or [None] * 256
            for entry in round_of:
                while self._waiting:
                    yield self._waiting.popleft()
                if self._question is not None and (entry is None or self._draw.random() < self._mixture.self_share):
                    yield Prompt(self._question, _QUESTION_TEMPERATURE, _LONGEST_QUESTION, _ASK)
                if entry is not None:
                    yield self.prompt(entry, self._draw.choice(self._mixture.temperatures))

    def take(self, answer: Answer) -> Answer | None:
        """The answer, if it is one to train on; the target's own questions become prompts instead."""
        prompt = answer.prompt
        if prompt.kind == _ASK:
            question = self._text(answer.ids).strip()
            if question and len(answer.ids) < _LONGEST_QUESTION:
                self._waiting.append(self._chat((("user", question),), SELF))
            return None
        chat = self._chats.pop(prompt.ids, None)
        if chat is not None and self._draw.random() < self._mixture.follow_up_share and len(answer.ids) > 4:
            said = (*chat, ("assistant", self._text(answer.ids).strip()), ("user", self._draw.choice(FOLLOW_UPS)))
            self._waiting.append(self._chat(said, prompt.kind))
        return answer

    def prompt(self, entry: Entry, temperature: float) -> Prompt:
        if entry.messages:
            return self._chat(entry.messages, entry.kind, temperature)
        text = entry.prefix or entry.text[: len(entry.text) // 3 or 1]
        ids = tuple(self._tokenizer(text, add_special_tokens=True)["input_ids"][: self._longest])
        return Prompt(ids, temperature, self._mixture.most_new_tokens, entry.kind)

    def _chat(self, messages: tuple[tuple[str, str], ...], kind: str, temperature: float | None = None) -> Prompt:
        ids = tuple(self._rendered(messages)[: self._longest + 1])
        if len(ids) > self._longest:
            return Prompt((), 0.0, 0, kind)  # cut, it would have no place for the answer; the sampler passes it over
        if len(messages) < 4 and len(self._chats) < 65_536:
            self._chats[ids] = messages
        heat = self._draw.choice(self._mixture.temperatures) if temperature is None else temperature
        return Prompt(ids, heat, self._mixture.most_new_tokens, kind)

    def _rendered(self, messages: tuple[tuple[str, str], ...]) -> list[int]:
        while messages[-1][0] == "assistant":
            messages = messages[:-1]
        if not self._tokenizer.chat_template:
            return list(self._tokenizer(messages[-1][1])["input_ids"])
        text = self._tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in messages],
            tokenize=False,
            add_generation_prompt=True,
        )
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _question_prefix(self) -> tuple[int, ...] | None:
        """Ids of a chat up to where the user's words begin, which make the target write a question."""
        chat = [{"role": "user", "content": _MARK}]
        text = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        before, mark, _ = text.partition(_MARK)
        if not mark or not before:
            return None
        return tuple(self._tokenizer(before, add_special_tokens=False)["input_ids"])

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
