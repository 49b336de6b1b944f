"""Tool calls and reasoning, through the SDK: asked for, read from the model's text, streamed, and sent back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from api_doubles import MODEL, TOKENIZER, Running, ScriptedBackend, Start, served_model
from openai import APIError
from openai.types.chat import ChatCompletion

from server.backend import ServedModel

TOOL_TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}<tool_call>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function.name }}({{ c.function.arguments.a }})</tool_call>{% endfor %}<|end|>{% endfor %}"
    "<|assistant|>"
)
THINK_TEMPLATE = (
    TOOL_TEMPLATE + "{% if enable_thinking is not defined or enable_thinking %}<think>{% else %}</think>{% endif %}"
)
HI: list[Any] = [{"role": "user", "content": "What is 1 + 2?"}]
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
NOOP: dict[str, Any] = {"type": "function", "function": {"name": "noop"}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
TWO = f'One moment.\n{CALL}\n<tool_call>\n{{"name": "noop", "arguments": {{}}}}\n</tool_call>'


def model(template: str, **changes: Any) -> ServedModel:
    plain = served_model(**changes)
    tokenizer = plain.tokenizer.model_copy(update={"chat_template": template})
    return served_model(tokenizer=tokenizer, grammar_types=["structural_tag", "json_schema"], **changes)


@pytest.fixture(scope="module")
def backend() -> ScriptedBackend:
    return ScriptedBackend(served=model(TOOL_TEMPLATE, context_length=4096))


@pytest.fixture(scope="module")
def gateway(start_session: Start, backend: ScriptedBackend) -> Running:
    return start_session(backend)


def prompt_of(running: Running) -> str:
    return TOKENIZER.decode(running.backend.requests[-1].prompt, skip_special_tokens=False)


def ask(running: Running, **changes: Any) -> ChatCompletion:
    return running.sdk.chat.completions.create(model=MODEL, messages=HI, **{"tools": [ADD, NOOP], **changes})


def test_a_template_for_tools_is_used_where_there_are_tools(start_session: Start) -> None:
    """Named templates: `default` knows no tools, so with it they would vanish from the prompt."""
    served = model(TOOL_TEMPLATE)
    plain = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    told = served.tokenizer.model_copy(update={"chat_template": plain, "tool_chat_template": TOOL_TEMPLATE})
    running = start_session(ScriptedBackend(served=served_model(tokenizer=told, grammar_types=["structural_tag"])))
    running.backend.text = CALL
    choice = ask(running).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert '"description": "Adds"' in prompt_of(running)
    running.sdk.chat.completions.create(model=MODEL, messages=HI)
    assert prompt_of(running) == "[user]What is 1 + 2?"


def test_calls_are_read_from_the_text(gateway: Running, backend: ScriptedBackend) -> None:
    backend.text = TWO
    choice = ask(gateway).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "One moment."
    assert choice.message.tool_calls is not None
    first, second = choice.message.tool_calls
    assert first.type == "function"
    assert second.type == "function"
    assert (first.function.name, json.loads(first.function.arguments)) == ("add", {"a": 1, "b": 2})
    assert (second.function.name, second.function.arguments) == ("noop", "{}")
    assert first.id != second.id
    assert '"description": "Adds"' in prompt_of(gateway)
    assert gateway.backend.requests[-1].grammar is None, "the model decides whether it calls"


def test_only_calls_have_null_content(gateway: Running, backend: ScriptedBackend) -> None:
    backend.text = CALL
    message = ask(gateway).choices[0].message
    assert message.content is None
    assert len(message.tool_calls or ()) == 1


def test_text_without_calls_is_content(gateway: Running, backend: ScriptedBackend) -> None:
    backend.text = 'a <tool_call> {"name": "unknown", "arguments": {}}'
    choice = ask(gateway).choices[0]
    assert choice.message.content == backend.text
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"


def test_one_call_at_a_time(gateway: Running, backend: ScriptedBackend) -> None:
    backend.text = TWO
    calls = ask(gateway, parallel_tool_calls=False).choices[0].message.tool_calls
    assert [call.function.name for call in calls or () if call.type == "function"] == ["add"]


@pytest.mark.parametrize("tokens_a_round", [1, 2, 7, 100])
def test_streamed_calls(start: Start, tokens_a_round: int) -> None:
    running = start(ScriptedBackend(text=TWO, tokens_a_round=tokens_a_round, served=model(TOOL_TEMPLATE)))
    with running.sdk.chat.completions.stream(model=MODEL, messages=HI, tools=[ADD, NOOP]) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    assert [(event.index, event.name, event.arguments) for event in done] == [
        (0, "add", '{"a": 1, "b": 2}'),
        (1, "noop", "{}"),
    ]
    assert final.finish_reason == "tool_calls"
    assert final.message.content == "One moment."


def test_raw_deltas_are_openais(gateway: Running, backend: ScriptedBackend) -> None:
    backend.text = CALL
    stream = gateway.sdk.chat.completions.create(model=MODEL, messages=HI, tools=[ADD], stream=True)
    choices = [chunk.choices[0] for chunk in stream if chunk.choices]
    calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
    assert calls[0].id
    assert calls[0].type == "function"
    assert calls[0].function is not None
    assert (calls[0].function.name, calls[0].function.arguments) == ("add", "")
    for more in calls[1:]:
        assert (more.id, more.type, more.index) == (None, None, 0)
        assert more.function is not None
        assert more.function.name is None
    assert "".join(call.function.arguments or "" for call in calls if call.function) == '{"a": 1, "b": 2}'
    assert choices[-1].finish_reason == "tool_calls"


def test_streamed_and_async(gateway: Running, backend: ScriptedBackend) -> None:
    backend.text = CALL

    async def run() -> str:
        async with gateway.async_sdk as client:
            stream = await client.chat.completions.create(model=MODEL, messages=HI, tools=[ADD], stream=True)
            pieces = [c.function.arguments or "" async for chunk in stream for c in calls_of(chunk)]
            return "".join(pieces)

    assert asyncio.run(run()) == '{"a": 1, "b": 2}'


def calls_of(chunk: Any) -> list[Any]:
    return [call for choice in chunk.choices for call in choice.delta.tool_calls or ()]


def test_calls_and_their_results_go_back_into_the_prompt(gateway: Running, backend: ScriptedBackend) -> None:
    backend.text = CALL
    message = ask(gateway).choices[0].message
    assert message.tool_calls
    history = [
        *HI,
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"},
    ]
    backend.text = "It is 3."
    answer = gateway.sdk.chat.completions.create(model=MODEL, messages=history, tools=[ADD])
    assert answer.choices[0].message.content == "It is 3."
    assert "<tool_call>add(1)</tool_call><|end|><|tool|>3<|end|>" in prompt_of(gateway)


def test_none_keeps_the_tools_from_the_model(gateway: Running, backend: ScriptedBackend) -> None:
    backend.text = CALL
    choice = ask(gateway, tool_choice="none").choices[0]
    assert choice.message.content == CALL
    assert choice.message.tool_calls is None
    assert "Adds" not in prompt_of(gateway)


@pytest.mark.parametrize(
    ("tool_choice", "names"),
    [("required", ["add", "noop"]), ({"type": "function", "function": {"name": "noop"}}, ["noop"])],
)
def test_calls_that_must_be_made_become_a_grammar(
    gateway: Running, backend: ScriptedBackend, tool_choice: Any, names: list[str]
) -> None:
    backend.text = '<tool_call>\n{"name": "noop", "arguments": {}}\n</tool_call>'
    choice = ask(gateway, tool_choice=tool_choice).choices[0]
    assert choice.finish_reason == "tool_calls"
    grammar = backend.requests[-1].grammar
    assert grammar is not None
    assert grammar.type == "structural_tag"
    assert grammar.start == len(backend.requests[-1].prompt)
    assert [name for name in ("add", "noop") if f'\\"{name}\\"' in grammar.value] == names
    assert backend.checked[-1] == grammar


def test_an_answer_may_be_a_call_or_what_was_demanded(gateway: Running, backend: ScriptedBackend) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    ask(gateway, response_format=format)
    grammar = backend.requests[-1].grammar
    assert grammar is not None
    either = json.loads(grammar.value)["format"]
    assert either["type"] == "or"
    assert either["elements"][1] == {"type": "json_schema", "json_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tools": [ADD, ADD]}, "tools[1].function.name"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}, None),
    ],
)
def test_wrong_tools_are_named(gateway: Running, changes: dict[str, Any], param: str | None) -> None:
    found = gateway.chat(**{"tools": [ADD], **changes})
    assert found.status_code == 400
    assert param is None or found.json()["error"]["param"] == param


def test_a_grammar_that_the_target_refuses(start: Start) -> None:
    running = start(ScriptedBackend(served=model(TOOL_TEMPLATE), fault="$ uses not"))
    with pytest.raises(APIError) as refused:
        ask(running, tool_choice="required")
    assert (refused.value.param, refused.value.code) == ("tools", "invalid_grammar")
    assert "$ uses not" in refused.value.message
    assert not running.backend.requests


def test_settings_choose_the_format(start: Start) -> None:
    text = '[TOOL_CALLS][{"name": "add", "arguments": {}}]'
    running = start(ScriptedBackend(text=text, served=model(TOOL_TEMPLATE)), tool_call_parser="mistral")
    assert len(ask(running).choices[0].message.tool_calls or ()) == 1
    running = start(ScriptedBackend(text=CALL, served=model(TOOL_TEMPLATE)), tool_call_parser="none")
    assert running.chat(tools=[ADD]).json()["error"]["param"] == "tools"


def test_reasoning_is_apart(start: Start) -> None:
    served = model(THINK_TEMPLATE)
    running = start(ScriptedBackend(text=f"hm, add\n</think>\n{CALL}", served=served, tokens_a_round=2))
    choice = running.chat(tools=[ADD]).json()["choices"][0]
    assert choice["message"]["reasoning_content"] == "hm, add\n"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "add"
    stream = running.sdk.chat.completions.create(model=MODEL, messages=HI, tools=[ADD], stream=True)
    deltas = [chunk.choices[0].delta.model_dump(exclude_unset=True) for chunk in stream if chunk.choices]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm, add\n"
    assert next(c for delta in deltas for c in delta.get("tool_calls", ()))["function"]["name"] == "add"


def test_a_prompt_may_have_closed_the_thought(start: Start) -> None:
    running = start(ScriptedBackend(text="Hi <think>", served=model(THINK_TEMPLATE)))
    message = running.chat(chat_template_kwargs={"enable_thinking": False}).json()["choices"][0]["message"]
    assert message["content"] == "Hi <think>"
    assert message["reasoning_content"] is None
    running = start(ScriptedBackend(text="a</think>b", served=model(THINK_TEMPLATE)), reasoning_parser="none")
    message = running.chat().json()["choices"][0]["message"]
    assert message["content"] == "a</think>b"
    assert "reasoning_content" not in message


def test_logprobs_cover_every_token_of_a_call(start: Start) -> None:
    running = start(ScriptedBackend(text=CALL, served=model(TOOL_TEMPLATE), tokens_a_round=3))
    stream = running.sdk.chat.completions.create(
        model=MODEL, messages=HI, tools=[ADD], stream=True, logprobs=True, stream_options={"include_usage": True}
    )
    entries, tokens = 0, 0
    for chunk in stream:
        entries += sum(len(c.logprobs.content or ()) for c in chunk.choices if c.logprobs is not None)
        tokens = chunk.usage.completion_tokens if chunk.usage is not None else tokens
    assert entries == tokens > 0


# A model whose template knows no tools: the generic form

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

    async def fault(grammar: Any) -> str | None:
        backend.checked.append(grammar)
        return "$ uses uniqueItems" if '"integer"' in grammar.value else None

    backend.grammar_fault = fault  # type: ignore[method-assign]
    assert ask(running).choices[0].finish_reason == "tool_calls"
    assert len(backend.checked) == 2
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


HARMONY_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{# functions. <|channel|>commentary<|message|> #}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
)


def test_harmony_is_read_with_its_channels(start: Start) -> None:
    call = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}'
    running = start(ScriptedBackend(text=call, served=model(HARMONY_TEMPLATE)))
    choice = running.chat(tools=[ADD]).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    running.backend.text = "<|channel|>final<|message|>Three."
    assert running.chat().json()["choices"][0]["message"]["content"] == "Three."
    running.backend.text = "<|channel|>analysis<|message|>Three?"
    message = running.chat().json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("", "Three?")


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
