"""Tool calls and reasoning, through the SDK: asked for, read from the model's text, streamed, and sent back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from api_doubles import MODEL, Running, ScriptedBackend, Start, prompt_of, served_model
from openai import APIError
from openai.types.chat import ChatCompletion

from server.backend import GrammarFault, ServedModel

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
    assert (refused.value.param, refused.value.code) == ("tools[0].function.parameters", "invalid_grammar")
    assert "$ uses not" in refused.value.message
    assert not running.backend.requests


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_the_one_tool_whose_schema_cannot_be_enforced_is_named(start: Start, choice: str) -> None:
    running = start(ScriptedBackend(served=model(TOOL_TEMPLATE)))

    async def fault(grammar: Any) -> GrammarFault | None:
        if "uniqueItems" not in grammar.value:
            return None
        return GrammarFault("uniqueItems is not enforced", "properties.x" if grammar.type == "json_schema" else "")

    running.backend.grammar_fault = fault  # type: ignore[method-assign]
    odd = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    other = {"type": "function", "function": {"name": "odd", "parameters": odd, "strict": True}}
    refused = running.chat(tools=[ADD, other], tool_choice=choice)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools[1].function.parameters.properties.x"


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
