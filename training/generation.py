"""Stage one: the target's answers to the prompts, kept in files that training reads."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from training.corpus import Corpus
from training.data import Entry
from training.errors import TrainingError
from training.prompts import PromptSource
from training.sampler import Answer, Sampler, timer

_REPORT_SECONDS = 15.0
_USELESS_ROUNDS = 4
_USELESS_BESIDES = 64
"""After so many questions of each sequence, and so many besides, without an answer there will be none."""


def generate(
    sampler: Sampler,
    source: PromptSource,
    *,
    tokens: int,
    minutes: float | None,
    progress: Callable[[str], None],
) -> Corpus:
    """Let the target answer until there are `tokens` new tokens, or for `minutes`.

    Raises:
        TrainingError: if no answer is one to train on, as where all of the target's own questions are too long.
    """
    answers: list[Answer] = []
    useless, most_useless = 0, _USELESS_ROUNDS * sampler.sequences + _USELESS_BESIDES
    done, begin = timer(None if minutes is None else 60 * minutes), time.monotonic()
    count = 0

    def until() -> bool:
        return count >= tokens or done()

    shown = begin
    for answer in sampler.run(iter(source), until=until):
        taken = source.take(answer)
        useless = useless + 1 if taken is None else 0
        if taken is not None:
            answers.append(taken)
            count += len(taken.ids)
        elif useless > most_useless:
            raise TrainingError(
                f"{useless} of the target's own questions in a row were empty or left no room for an answer: "
                "give a larger --length, or prompts in --data"
            )
        now = time.monotonic()
        if now - shown > _REPORT_SECONDS:
            shown = now
            progress(f"generated {count:,} of {tokens:,} tokens, {count / (now - begin):,.0f} a second")
    return Corpus.of_answers(answers)


def held_out_answers(
    sampler: Sampler, source: PromptSource, entries: Sequence[Entry], temperatures: Sequence[float]
) -> Corpus:
    """Answers to prompts that training never sees, at each temperature."""
    prompts = [source.prompt(entry, heat) for heat, entry in itertools.product(temperatures, entries)]
    return Corpus.of_answers(list(sampler.run(iter(prompts))))


def own_texts(tokenizer: Any, entries: Sequence[Entry], longest: int) -> Corpus | None:
    """The data's own answers and texts, as they stand; None if it has none."""
    sequences = []
    for entry in entries:
        if entry.text:
            ids = tokenizer(entry.text, add_special_tokens=True)["input_ids"]
            for begin in range(0, len(ids), longest):
                sequences.append((ids[begin : begin + longest], 1 if begin == 0 else 0, -1.0, entry.kind))
        elif entry.messages and entry.messages[-1][0] == "assistant" and tokenizer.chat_template:
            chat = [{"role": role, "content": content} for role, content in entry.messages]
            asked, whole = (
                tokenizer(
                    tokenizer.apply_chat_template(part, tokenize=False, add_generation_prompt=last),
                    add_special_tokens=False,
                )["input_ids"]
                for part, last in ((chat[:-1], True), (chat, False))
            )
            if whole[: len(asked)] == asked:
                sequences.append((whole[:longest], len(asked), -1.0, entry.kind))
    return Corpus.of([each for each in sequences if len(each[0]) > max(1, each[1])]) if sequences else None
