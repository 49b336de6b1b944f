"""Every format of calls, end to end: what is written under its grammar is read as calls, and drafts change nothing.

One target and one draft worker, over a vocabulary with the marks of all formats; a gateway for each format. Requests go
through HTTP: plain and drafted, greedy and sampled, whole and streamed. The model is random, so what it says is noise
in the right form; asked twice, the second time it is drafted from the memory of the first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from transformers import PreTrainedTokenizerFast

from server.reading import harmony
from server.reading.tools.formats import FORMATS, CallFormat
from testing.in_process import Stack, gateway_before, running_stack
from testing.patience import tries
from testing.tiny_models import make_tiny_model

VOCABULARY = 512
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN: dict[str, Any] = {"enabled": False}
DRAFTED: dict[str, Any] = {"draft_tokens": 6, "adaptive_speculation": False}
GREEDY: dict[str, Any] = {"temperature": 0}
SAMPLED: dict[str, Any] = {"temperature": 1, "seed": 11}
BOOK = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 4}, "copies": {"type": "integer", "maximum": 9}},
    "required": ["title", "copies"],
    "additionalProperties": False,
}
WEIGH = {"type": "object", "properties": {"unit": {"enum": ["kilogram", "pound"]}}, "required": ["unit"]}
SCHEMAS = {"book": BOOK, "weigh": WEIGH}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]
MARKS = sorted({mark for form in FORMATS.values() for mark in form.marks if len(mark) > 3} | set(harmony.MARKS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("models"), context_length=1024, vocabulary=VOCABULARY)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": MARKS}, replace_extra_special_tokens=False)
    assert len(tokenizer) <= VOCABULARY, "the model has a row of logits for each mark"
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def workers(bitwise: None, folder: Path) -> Iterator[Stack]:
    with running_stack(folder) as stack:
        yield stack


@pytest.fixture(scope="module")
def gateways(workers: Stack) -> Iterator[dict[str, Stack]]:
    with ExitStack() as opened:
        yield {name: opened.enter_context(gateway_before(workers, tool_call_parser=name)) for name in FORMATS}


def said(stack: Stack, *, stream: bool, **options: Any) -> tuple[Any, int]:
    """Content, calls, finish reason and number of tokens; and how many draft tokens were accepted."""
    options = {"tools": TOOLS, "max_tokens": 70, "messages": [{"role": "user", "content": "Hi"}], **options}
    extra = {"speculative": options.pop("speculative"), "logit_bias": options.pop("logit_bias", None)}
    create = stack.sdk.chat.completions.create
    if not stream:
        answer = create(model="tiny", extra_body=extra, **options)
        choice = answer.choices[0]
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
        usage, content = answer.usage, choice.message.content
        finish: str | None = choice.finish_reason
    else:
        usage, content, finish, pieces = None, "", None, []
        options |= {"stream": True, "stream_options": {"include_usage": True}}
        for chunk in create(model="tiny", extra_body=extra, **options):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                content += choice.delta.content or ""
                for call in choice.delta.tool_calls or ():
                    if call.function.name is not None:
                        pieces.append([call.function.name, ""])
                    pieces[-1][1] += call.function.arguments or ""
        calls = [(name, arguments) for name, arguments in pieces]
    details = usage.completion_tokens_details
    return (content or None, calls, finish, usage.completion_tokens), details.accepted_prediction_tokens


def asked_all_ways(stack: Stack, **options: Any) -> Any:
    """What is said plainly, which is what is said in every other way; of the last, most was drafted."""
    plain, _ = said(stack, stream=False, speculative=PLAIN, **options)
    first, _ = said(stack, stream=True, speculative=DRAFTED, **options)
    assert first == plain
    ask = partial(said, stack, stream=False, speculative=DRAFTED, **options)
    found = tries(ask, lambda told: told[1] > plain[3] // 3, "drafts took part: they may be late")
    assert all(again == plain for again, _ in found)
    return plain


def check(calls: list[tuple[str, str]], finish: str | None) -> None:
    """All but one that was cut are calls of functions there are, with arguments after their schemas."""
    assert calls
    whole = calls if finish == "tool_calls" else calls[:-1]
    for name, arguments in whole:
        Draft202012Validator(SCHEMAS[name]).validate(json.loads(arguments))


@pytest.mark.parametrize("name", FORMATS)
def test_calls_that_must_be_made(gateways: dict[str, Stack], name: str) -> None:
    assert gateways[name].sdk.models.retrieve("tiny").model_dump()["tool_call_format"] == name
    content, calls, finish, _ = asked_all_ways(gateways[name], tool_choice="required", **GREEDY)
    assert content is None
    check(calls, finish)
    named = {"type": "function", "function": {"name": "weigh"}}
    options: dict[str, Any] = {"parallel_tool_calls": False, "max_tokens": 160, **SAMPLED}
    content, calls, finish, _ = asked_all_ways(gateways[name], tool_choice=named, **options)
    assert (content, finish) == (None, "tool_calls")
    check(calls, finish)
    assert [called for called, _ in calls] == ["weigh"]


def opener_of(form: CallFormat, folder: Path) -> dict[str, float]:
    """A bias that has the model open calls whenever it may."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    (token_id,) = tokenizer.encode(form.opener or "{", add_special_tokens=False)
    return {str(token_id): 50.0}


@pytest.mark.parametrize("name", FORMATS)
def test_calls_that_the_model_opens_itself(gateways: dict[str, Stack], folder: Path, name: str) -> None:
    """Both functions are strict: from the opener on the grammar holds. What is cut is half a call."""
    bias = opener_of(FORMATS[name], folder)
    for drawing in (GREEDY, SAMPLED):
        content, calls, finish, _ = asked_all_ways(gateways[name], tool_choice="auto", logit_bias=bias, **drawing)
        assert content is None or not calls or "{" not in content
        check(calls, finish)
