"""Tools as Llama 3 and Mistral write them, end to end: their special tokens, their templates, the grammar, the SDK."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from testing.in_process import Stack, running_stack
from testing.tiny_models import make_tiny_model
from tests.clients.conftest import Sum
from tests.clients.test_openai_clients import ADD, HI, TELL

PLAIN: dict[str, Any] = {"enabled": False}
DRAFTED: dict[str, Any] = {"draft_tokens": 6, "adaptive_speculation": False}


@dataclass(frozen=True)
class Format:
    """`mark` is a special token of the family's; `written` how its template writes a call that was made."""

    mark: str
    template: str
    written: str
    id_length: int


FORMATS = {
    "llama3_json": Format(
        mark="<|python_tag|>",
        template=(
            "{% if tools %}Functions:{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
            "{% for m in messages %}<|im_start|>{{ 'ipython' if m.role == 'tool' else m.role }}\n"
            "{% if m.tool_calls %}{% set call = m.tool_calls[0].function %}"
            '{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}'
            "{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        ),
        written='{"name": "add", "parameters": {',
        id_length=len("call_") + 24,
    ),
    "mistral": Format(
        mark="[TOOL_CALLS]",
        template=(
            "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
            "{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS][{% for call in m.tool_calls %}"
            "{% if call.id | length != 9 %}{{ raise_exception('ids of nine characters') }}{% endif %}"
            '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, '
            '"id": "{{ call.id }}"}{% endfor %}]<|im_end|>'
            "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
            "{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}"
        ),
        written='[TOOL_CALLS][{"name": "add", "arguments": {',
        id_length=9,
    ),
}


@pytest.fixture(scope="module", params=FORMATS)
def form(request: pytest.FixtureRequest) -> Format:
    return FORMATS[request.param]


@pytest.fixture(scope="module")
def stack(bitwise: None, form: Format, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = make_tiny_model(tmp_path_factory.mktemp("models"), context_length=1024, vocabulary=448)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [form.mark]}, replace_extra_special_tokens=False)
    assert len(tokenizer) <= 448, "the model has a row of logits for it"
    tokenizer.chat_template = form.template
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(form.template)
    with running_stack(folder) as stack:
        yield stack


def forced(stack: Stack, **changes: Any) -> dict[str, Any]:
    """A choice whose call is enforced. Whatever the model says on its own is noise."""
    options = {"tools": [ADD, TELL], "tool_choice": "required", "max_tokens": 150, "logit_bias": {"2": 5}, **changes}
    choice: dict[str, Any] = stack.chat(**options).json()["choices"][0]
    return choice


@pytest.mark.parametrize("seed", range(2))
def test_forced_calls_are_valid_and_the_same_with_drafts(stack: Stack, form: Format, seed: int) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        found = []
        for speculative in (PLAIN, DRAFTED):
            answer = forced(stack, tool_choice=choice, seed=seed, speculative=speculative)
            calls = answer["message"]["tool_calls"]
            assert answer["message"]["content"] is None
            assert {len(call["id"]) for call in calls} == {form.id_length}
            found.append([call["function"] for call in calls])
        assert found[0] == found[1]
        whole = found[0] if answer["finish_reason"] == "tool_calls" else found[0][:-1]
        for call in whole:
            if call["name"] == "add":
                Sum.model_validate_json(call["arguments"])
        assert choice == "required" or found[0][0]["name"] == "add"


def test_a_streamed_call_and_its_result_sent_back(stack: Stack, form: Format) -> None:
    options: dict[str, Any] = {"model": "tiny", "tools": [ADD], "parallel_tool_calls": False, "seed": 4}
    forcing: dict[str, Any] = {"messages": HI, "tool_choice": "required", "max_tokens": 150}
    with stack.sdk.chat.completions.stream(**options, **forcing) as stream:
        (done,) = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    Sum.model_validate_json(done.arguments)
    whole = stack.sdk.chat.completions.create(**options, **forcing).choices[0].message
    assert whole.tool_calls is not None
    assert whole.tool_calls[0].function.arguments == done.arguments
    result = {"role": "tool", "tool_call_id": whole.tool_calls[0].id, "content": "3"}
    history: list[Any] = [*HI, whole.model_dump(include={"role", "tool_calls"}), result]
    answer = stack.sdk.chat.completions.create(messages=history, tool_choice="none", max_tokens=5, **options)
    assert answer.choices[0].finish_reason in ("stop", "length")
    ids = stack.post("/tokenize", {"model": "tiny", "messages": history}).json()["tokens"]
    assert form.written in stack.post("/detokenize", {"model": "tiny", "tokens": ids}).json()["prompt"]
