"""A model whose template knows no tools gets them in words, and calls them in the generic form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from api_doubles import MODEL, TOKENIZER, Running, ScriptedBackend, Start, prompt_of, served_model
from test_api_tools import ADD, CALL, HI, NOOP, TOOL_TEMPLATE, ask, model

from server.backend import GrammarFault

RESULTS: list[Any] = [
    *HI,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}},
            {"id": "c2", "type": "function", "function": {"name": "noop", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
    {"role": "tool", "tool_call_id": "c2", "content": "done"},
    {"role": "user", "content": "So?"},
]
PLAIN_CALL = '{"name": "add", "arguments": {"a": 1, "b": 2}}'


def generic(start: Start, text: str = PLAIN_CALL, template: str | None = None, **settings: Any) -> Running:
    served = served_model(grammar_types=["structural_tag", "json_schema"], context_length=4096)
    if template is not None:
        tokenizer = served.tokenizer.model_copy(update={"chat_template": template})
        served = served_model(tokenizer=tokenizer, grammar_types=["structural_tag"], context_length=4096)
    return start(ScriptedBackend(text=text, served=served), **settings)


def schemas_of(grammar: Any) -> list[Any]:
    """Of the arguments, wherever they stand in a grammar of calls."""
    found: list[Any] = []

    def look(part: Any) -> None:
        if isinstance(part, dict) and part.get("type") == "json_schema":
            found.append(part["json_schema"])
        elif isinstance(part, dict | list):
            for one in part.values() if isinstance(part, dict) else part:
                look(one)

    look(json.loads(grammar.value)["format"])
    return found


def test_any_model_is_told_its_tools_in_words(start: Start) -> None:
    running = generic(start)
    choice = ask(running).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1, "b": 2})
    prompt = prompt_of(running)
    assert prompt.startswith("<|system|>You can call these functions:\n" + '{"name": "add", "description": "Adds"')
    assert '{"name": "add", "arguments": {"a": 1, "b": 1}}' in prompt, "an example"
    grammar = running.backend.requests[-1].grammar
    assert grammar is not None
    assert running.backend.checked == [grammar]
    assert ADD["function"]["parameters"] in schemas_of(grammar), "though it is not strict"
    card = running.sdk.models.retrieve(MODEL)
    assert card.model_dump()["tool_call_format"] == "json"


def test_the_system_message_keeps_its_place(start: Start) -> None:
    running = generic(start)
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, *HI]
    running.sdk.chat.completions.create(model=MODEL, messages=messages, tools=[ADD])
    assert prompt_of(running).startswith("<|system|>Be brief.\n\nYou can call these functions:")


def test_a_template_without_system_messages_has_the_tools_in_the_first_turn(start: Start) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
    )
    running = generic(start, template=template)
    ask(running)
    prompt = prompt_of(running)
    assert prompt.startswith("<|user|>You can call these functions:")
    assert "\n\nWhat is 1 + 2?<|end|>" in prompt


def test_results_are_user_turns_that_say_whose_they_are(start: Start) -> None:
    running = generic(start, "It is 3.")
    answer = running.sdk.chat.completions.create(model=MODEL, messages=RESULTS, tools=[ADD, NOOP])
    assert answer.choices[0].message.content == "It is 3."
    assert prompt_of(running).endswith(
        '<|assistant|>{"name": "add", "arguments": {"a": 1, "b": 2}}\n{"name": "noop", "arguments": {}}<|end|>'
        "<|user|>The result of add:\n3\n\nThe result of noop:\ndone\n\nSo?<|end|><|assistant|>"
    )
    # So is a conversation whose next request has no tools.
    running.sdk.chat.completions.create(model=MODEL, messages=RESULTS)
    assert "The result of add:\n3" in prompt_of(running)
    assert "You can call" not in prompt_of(running)


def test_a_template_that_names_the_role_keeps_it(start: Start) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'tool' %}[result]{{ m.content }}{% else %}"
        "<|{{ m.role }}|>{{ m.content }}{% endif %}<|end|>{% endfor %}<|assistant|>"
    )
    running = generic(start, template=template)
    running.sdk.chat.completions.create(model=MODEL, messages=RESULTS, tools=[ADD, NOOP])
    assert "<|end|>[result]3<|end|>[result]done<|end|><|user|>So?<|end|>" in prompt_of(running)


def test_a_form_that_was_set_is_shown_where_the_template_shows_none(start: Start) -> None:
    running = generic(start, CALL, tool_call_parser="hermes")
    assert len(ask(running).choices[0].message.tool_calls or ()) == 1
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 1}}\n</tool_call>' in prompt_of(running)
    assert running.backend.requests[-1].grammar is None, "nothing is strict"


def test_strict_functions_are_held_where_the_model_is_free(start: Start) -> None:
    running = start(ScriptedBackend(text=CALL, served=model(TOOL_TEMPLATE)))
    strict = {**ADD, "function": {**ADD["function"], "strict": True}}
    ask(running, tools=[strict, NOOP])
    grammar = running.backend.requests[-1].grammar
    assert grammar is not None
    assert json.loads(grammar.value)["format"]["triggers"] == ["<tool_call>"]


def test_what_a_target_cannot_enforce_is_refused_for_strict_functions_alone(start: Start) -> None:
    """In the generic form other functions' calls are then held to any object."""
    running = generic(start)
    backend = running.backend

    async def fault(grammar: Any) -> GrammarFault | None:
        backend.checked.append(grammar)
        return GrammarFault("$ uses uniqueItems") if '"integer"' in grammar.value else None

    backend.grammar_fault = fault  # type: ignore[method-assign]
    assert ask(running).choices[0].finish_reason == "tool_calls"
    assert len(backend.checked) == 2
    assert schemas_of(backend.requests[-1].grammar) == [{"type": "object"}] * 2
    strict = {**ADD, "function": {**ADD["function"], "strict": True}}
    refused = running.chat(tools=[strict])
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "invalid_grammar"


@pytest.mark.parametrize("streamed", [False, True])
def test_half_a_call_is_one_that_was_cut(start: Start, streamed: bool) -> None:
    running = generic(start)
    tokens = len(TOKENIZER.encode('{"name": "add", "argu').ids)
    if streamed:
        stream = running.sdk.chat.completions.create(
            model=MODEL, messages=HI, tools=[ADD], max_tokens=tokens, stream=True
        )
        chunks = [chunk.choices[0] for chunk in stream if chunk.choices]
        reason, calls = chunks[-1].finish_reason, [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
        assert not any(chunk.delta.content for chunk in chunks)
    else:
        choice: Any = ask(running, max_tokens=tokens).choices[0]
        reason, calls = choice.finish_reason, choice.message.tool_calls
    assert reason == "length"
    assert [(call.function.name, call.function.arguments) for call in calls] == [("add", "")]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize(("named", "expected"), [(True, [("noop", "")]), (False, [])])
def test_a_call_that_must_be_made_is_no_content_though_it_was_cut_before_its_name(
    start: Start, streamed: bool, rounds: bool, named: bool, expected: list[tuple[str, str]]
) -> None:
    running = generic(start, '{"name": "noop", "arguments": {}}')
    options: dict[str, Any] = {
        "model": MODEL, "messages": HI, "tools": [ADD, NOOP], "max_tokens": 2,
        "tool_choice": {"type": "function", "function": {"name": "noop"}} if named else "required",
    }  # fmt: skip
    if streamed:
        extra = {"speculative": {"report_rounds": rounds}}
        stream = running.sdk.chat.completions.create(**options, stream=True, extra_body=extra)
        chunks = [chunk.choices[0] for chunk in stream if chunk.choices]
        reason, calls = chunks[-1].finish_reason, [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
        content = "".join(chunk.delta.content or "" for chunk in chunks)
    else:
        choice = running.sdk.chat.completions.create(**options).choices[0]
        reason, calls, content = choice.finish_reason, choice.message.tool_calls or [], choice.message.content or ""
    assert (reason, content) == ("length", "")
    assert [(call.function.name, call.function.arguments) for call in calls] == expected


def test_an_example_is_of_the_kinds_that_the_schema_asks_for(start: Start) -> None:
    running = generic(start)
    parameters = {
        "type": "object",
        "properties": {
            "place": {"$ref": "#/$defs/Place"},
            "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "stops": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
            "lost": {"$ref": "#/$defs/nowhere"},
        },
        "$defs": {"Place": {"type": "object", "properties": {"city": {"type": "string"}, "in": {"const": "NO"}}}},
    }
    function = {"name": "travel", "parameters": parameters}
    ask(running, tools=[{"type": "function", "function": function}])
    place = '{"city": "text", "in": "NO"}'
    arguments = f'{{"place": {place}, "days": 1, "stops": [{place}], "lost": "text"}}'
    assert f'{{"name": "travel", "arguments": {arguments}}}' in prompt_of(running)


def test_phi_4_mini_looks_for_tools_in_the_system_message(start: Start) -> None:
    template = (
        "{% for message in messages %}{% if message['role'] == 'system' and message['tools'] %}"
        "<|system|>{{ message['content'] }}<|tool|>{{ message['tools'] }}<|/tool|><|end|>"
        "{% else %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endif %}{% endfor %}<|assistant|>"
    )
    running = generic(start, '<|tool_call|>[{"name": "add", "arguments": {"a": 1}}]<|/tool_call|>', template)
    message = ask(running).choices[0].message
    assert len(message.tool_calls or ()) == 1
    assert message.content is None
    assert prompt_of(running).startswith('<|system|><|tool|>[{"name": "add", "description": "Adds"')
