"""OpenAI's SDK: each kind of answer, appended to the history as the SDK gives it, is taken back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import OpenAI, pydantic_function_tool
from pydantic import TypeAdapter

from tests.clients.conftest import Sum

# The SDK's own models warn about what its own parse() put into them.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")

HI: list[Any] = [{"role": "user", "content": "What is 1 + 2?"}]
MORE: list[Any] = [{"role": "user", "content": "Are you sure?"}]
TOOL = pydantic_function_tool(Sum)
FLAT: Any = {"type": "function", **TOOL["function"]}
OPTIONS: dict[str, Any] = {"model": "tiny", "seed": 3, "max_tokens": 120}
RESPONSES: dict[str, Any] = {"model": "tiny", "max_output_tokens": 120, "extra_body": {"seed": 3}}


def results(message: Any) -> list[Any]:
    return [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in message.tool_calls or ()]


def goes_on(sdk: OpenAI, history: list[Any]) -> str:
    """The next answer to a history, which must say the same however the history's last turn is written."""
    options: dict[str, Any] = {**OPTIONS, "max_tokens": 12, "tools": [TOOL], "tool_choice": "none"}
    answer = sdk.chat.completions.create(messages=[*HI, *history, *MORE], **options)
    return answer.choices[0].message.content or ""


def plainly(message: Any) -> dict[str, Any]:
    """The turn as OpenAI's reference has it, nothing beside."""
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for call in message.tool_calls or ()
    ]
    return {"role": "assistant", "content": message.content, **({"tool_calls": calls} if calls else {})}


def forms(message: Any) -> list[Any]:
    """How people append an answer: the object, its fields, its fields without nulls."""
    return [message, message.model_dump(), message.model_dump(exclude_none=True), message.to_dict()]


def create(sdk: OpenAI, **more: Any) -> Any:
    return sdk.chat.completions.create(messages=HI, **OPTIONS, **more).choices[0].message


def parse(sdk: OpenAI, **more: Any) -> Any:
    return sdk.chat.completions.parse(messages=HI, **OPTIONS, **more).choices[0].message


def stream(sdk: OpenAI, **more: Any) -> Any:
    with sdk.chat.completions.stream(messages=HI, **OPTIONS, **more) as events:
        for _ in events:
            pass
        return events.get_final_completion().choices[0].message


CALLING: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}


@pytest.mark.parametrize("way", [create, parse, stream])
@pytest.mark.parametrize("more", [{}, CALLING], ids=["text", "call"])
def test_an_answer_is_taken_back(sdk: OpenAI, way: Any, more: dict[str, Any]) -> None:
    message = way(sdk, **more)
    assert bool(message.tool_calls) == bool(more)
    after = results(message)
    expected = goes_on(sdk, [plainly(message), *after])
    for form in forms(message):
        assert goes_on(sdk, [form, *after]) == expected


@pytest.mark.parametrize("way", [parse, stream])
def test_what_was_parsed_is_taken_back(sdk: OpenAI, way: Any) -> None:
    message = way(sdk, response_format=Sum)
    assert isinstance(message.parsed, Sum)
    for form in forms(message):
        assert goes_on(sdk, [form]) == goes_on(sdk, [plainly(message)])


def test_a_call_put_together_from_a_stream_is_taken_back(sdk: OpenAI) -> None:
    """As most tutorials do it: the deltas added up, `index` and all."""
    call: dict[str, Any] = {}
    for chunk in sdk.chat.completions.create(messages=HI, stream=True, **OPTIONS, **CALLING):
        for delta in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
            if not call:
                call = delta.model_dump()
            else:
                call["function"]["arguments"] += delta.function.arguments or ""
    Sum.model_validate_json(call["function"]["arguments"])
    assert "index" in call
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "3"}
    plain = {**turn, "tool_calls": [{"id": call["id"], "type": "function", "function": call["function"]}]}
    assert goes_on(sdk, [turn, result]) == goes_on(sdk, [plain, result])


def test_a_call_that_was_cut_is_taken_back(sdk: OpenAI) -> None:
    """Wherever it was cut, there is something of a call or of the text before it."""
    cut = 0
    for most in range(20, 70, 10):
        options: dict[str, Any] = {**OPTIONS, "max_tokens": most}
        message = sdk.chat.completions.create(messages=HI, **options, **CALLING).choices[0].message
        assert isinstance(goes_on(sdk, [message, *results(message)]), str)
        answer = sdk.responses.create(
            model="tiny", input=HI, tools=[FLAT], tool_choice="required", max_output_tokens=most, extra_body={"seed": 3}
        )
        outputs = [
            {"type": "function_call_output", "call_id": item.call_id, "output": ""}
            for item in answer.output
            if item.type == "function_call"
        ]
        assert sdk.responses.create(input=[*HI, *answer.output, *outputs], **RESPONSES).output
        cut += any(not is_json(call.function.arguments) for call in message.tool_calls or ())
    assert cut


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def responses_create(sdk: OpenAI, **more: Any) -> Any:
    return sdk.responses.create(input=HI, **RESPONSES, **more)


def responses_parse(sdk: OpenAI, **more: Any) -> Any:
    return sdk.responses.parse(input=HI, **RESPONSES, **more)


def responses_stream(sdk: OpenAI, **more: Any) -> Any:
    with sdk.responses.stream(input=HI, **RESPONSES, **more) as events:
        for _ in events:
            pass
        return events.get_final_response()


@pytest.mark.parametrize("way", [responses_create, responses_parse, responses_stream])
@pytest.mark.parametrize("kind", ["text", "call", "schema"])
def test_a_response_is_taken_back(sdk: OpenAI, way: Any, kind: str) -> None:
    more: dict[str, Any] = {}
    if kind == "call":
        more = {"tools": [FLAT], "tool_choice": "required", "parallel_tool_calls": False}
    elif kind == "schema":
        schema = {**Sum.model_json_schema(), "additionalProperties": False}
        named = {"format": {"type": "json_schema", "name": "Sum", "schema": schema, "strict": True}}
        more = {"text": named} if way is responses_create else {"text_format": Sum}
    answer = way(sdk, **more)
    after = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "3"}
        for item in answer.output
        if item.type == "function_call"
    ]
    assert bool(after) == (kind == "call")
    texts = set()
    dumped = TypeAdapter(list[Any]).dump_python(answer.output)
    sparse = [item.model_dump(exclude_none=True) for item in answer.output]
    for form in (list(answer.output), dumped, sparse):
        options = {**RESPONSES, "max_output_tokens": 12}
        texts.add(sdk.responses.create(input=[*HI, *form, *after, *MORE], **options).output_text)
    assert len(texts) == 1
