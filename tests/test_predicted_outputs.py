"""Predicted outputs and drafts from grammars, through all three services: the same text, fewer rounds, all counted."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from testing.in_process import Stack, running_stack
from testing.patience import tries
from testing.tiny_models import make_tiny_model

FIXED: dict[str, Any] = {"draft_tokens": 5, "adaptive_speculation": False}
PLAIN: dict[str, Any] = {"enabled": False}
RECORD = {
    "type": "object",
    "properties": {"identifier": {"type": "integer", "minimum": 0, "maximum": 9}, "checked": {"type": "boolean"}},
    "required": ["identifier", "checked"],
}


@pytest.fixture(scope="module")
def stack(bitwise: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = make_tiny_model(tmp_path_factory.mktemp("models") / "target", layers=3, context_length=512)
    with running_stack(folder) as stack:
        yield stack


def accepted(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"])


def content(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


# A grammar has the random model write text that a tokenizer would spell in the same way.
WORDS: dict[str, Any] = {"structured_outputs": {"regex": "( (quick|brown|fox|lazy|dog)){12}"}, "max_tokens": 64}


@pytest.mark.parametrize("as_parts", [False, True])
def test_a_right_prediction_is_accepted_and_counted(stack: Stack, as_parts: bool) -> None:
    seeds = itertools.count(100 + 100 * as_parts)

    def told() -> tuple[dict[str, Any], int]:
        """With the prediction, and what lookup alone has accepted. A new text each time: what is asked twice is drafted
        from the memory of the first answer."""
        fields = {**WORDS, "seed": next(seeds)}
        plain = stack.chat(speculative=PLAIN, **fields).json()
        text = content(plain)
        parts: Any = [{"type": "text", "text": text[:20]}, {"type": "text", "text": text[20:]}]
        predicted = {"type": "content", "content": parts if as_parts else text}
        answer = stack.chat(speculative=FIXED, prediction=predicted, **fields).json()
        without = stack.chat(speculative={**FIXED, "draft_model": "lookup"}, **fields).json()
        assert content(answer) == content(without) == text
        usage = answer["usage"]
        assert accepted(answer) < usage["completion_tokens"]
        assert usage["completion_tokens"] == plain["usage"]["completion_tokens"], "rejected ones do not count"
        return answer, accepted(without)

    tries(told, lambda found: accepted(found[0]) > found[1], "more is accepted than by lookup alone")


def test_a_prediction_that_is_partly_wrong_is_found_again(stack: Stack) -> None:
    seeds = itertools.count(300)

    def told() -> dict[str, Any]:
        fields = {**WORDS, "seed": next(seeds)}
        text = content(stack.chat(speculative=PLAIN, **fields).json())
        words = text.split(" ")
        words[5] = "dog" if words[5] != "dog" else "fox"
        predicted = {"type": "content", "content": " ".join(words)}
        answer: dict[str, Any] = stack.chat(speculative=FIXED, prediction=predicted, **fields).json()
        assert content(answer) == text
        return answer["usage"]

    def found_again(usage: dict[str, Any]) -> bool:
        details = usage["completion_tokens_details"]
        rejected, right = details["rejected_prediction_tokens"], details["accepted_prediction_tokens"]
        return bool(rejected > 0 and right > usage["completion_tokens"] / 3)

    tries(told, found_again, "drafts from before and after the wrong word")


@pytest.mark.parametrize("predicted", ["", "Nothing of the kind.", "\x00\ud7ff", "<|im_end|><|im_start|>"])
def test_a_wrong_prediction_changes_nothing(stack: Stack, predicted: str) -> None:
    fields: dict[str, Any] = {"seed": 7, "max_tokens": 16}
    answer = stack.chat(speculative=FIXED, prediction={"type": "content", "content": predicted}, **fields)
    assert content(answer.json()) == content(stack.chat(speculative=PLAIN, **fields).json())


def test_what_a_grammar_forces_is_drafted(stack: Stack) -> None:
    fields = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "r", "schema": RECORD}},
        "temperature": 0,
        "max_tokens": 80,
        "messages": [{"role": "user", "content": "Write it."}],
    }
    plain = stack.chat(speculative=PLAIN, **fields).json()
    stack.chat(speculative=FIXED, **fields)  # the first has the draft worker read vocabulary and grammar
    for drafted in tries(
        lambda: stack.chat(speculative=FIXED, **fields).json(), lambda answer: accepted(answer) > 0, "drafts"
    ):
        assert content(drafted) == content(plain)
        assert set(json.loads(content(drafted))) == {"identifier", "checked"}
