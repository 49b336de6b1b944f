"""The Responses API through the official SDK: text, tools, thoughts, streams and failures."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from api_doubles import (
    END,
    MODEL,
    TOKENIZER,
    Running,
    ScriptedBackend,
    Start,
    error,
    make_round,
    prompt_of,
    served_model,
)
from pydantic import BaseModel
from test_api_tools import CALL, THINK_TEMPLATE, TWO, model

from server.backend import GenerationRequest, Round
from server.errors import Unavailable
from testing.patience import PATIENCE

ADD: dict[str, Any] = {
    "type": "function",
    "name": "add",
    "description": "Adds",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "strict": True,
}
NOOP: dict[str, Any] = {"type": "function", "name": "noop"}


class Point(BaseModel):
    x: int


@pytest.fixture(scope="module")
def thinker(start_session: Start) -> Running:
    return start_session(ScriptedBackend(text="hm, well</think>\n\nyes", served=model(THINK_TEMPLATE)))


def test_an_answer_in_one_piece(gateway: Running) -> None:
    answer = gateway.sdk.responses.create(
        model=MODEL, input="Hi", instructions="Be brief", metadata={"a": "b"}, store=True, max_output_tokens=50,
        extra_body={"seed": 7},
    )  # fmt: skip
    assert answer.output_text == "the quick brown fox"
    assert answer.status == "completed"
    assert answer.id.startswith("resp_")
    assert [item.type for item in answer.output] == ["message"]
    assert (answer.instructions, answer.metadata, answer.max_output_tokens) == ("Be brief", {"a": "b"}, 50)
    assert answer.model_extra["store"] is False, "nothing is stored, whatever was asked"
    tokens = len(TOKENIZER.encode("the quick brown fox").ids) + 1
    usage = answer.usage
    assert (usage.output_tokens, usage.total_tokens) == (tokens, usage.input_tokens + tokens)
    assert usage.output_tokens_details.reasoning_tokens == 0
    assert usage.output_tokens_details.model_extra["accepted_prediction_tokens"] > 0
    assert answer.model_extra["tandem"] == {"strategy": "deterministic", "lossless": True, "seed": 7}
    assert answer.model_extra["metrics"]["speculative_decoding"]["num_spec_steps"] > 0
    assert prompt_of(gateway) == "<|system|>Be brief<|end|><|user|>Hi<|end|><|assistant|>"


def test_cut_by_its_length_it_is_incomplete(gateway: Running) -> None:
    answer = gateway.sdk.responses.create(model=MODEL, input="Hi", max_output_tokens=2)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete"
    *_, last = gateway.sdk.responses.create(model=MODEL, input="Hi", max_output_tokens=2, stream=True)
    assert last.type == "response.incomplete"


def test_what_was_answered_may_be_sent_back(tools: Running, backend: ScriptedBackend) -> None:
    backend.text = TWO
    first = tools.sdk.responses.create(model=MODEL, input="Hi", tools=[ADD, NOOP])
    calls = [item for item in first.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "3"} for call in calls]
    backend.text = "so be it"
    again: list[Any] = [{"role": "user", "content": "Hi"}, *first.output, *results]
    answer = tools.sdk.responses.create(model=MODEL, input=again, tools=[ADD, NOOP])
    assert answer.output_text == "so be it"
    assert "One moment.<tool_call>add(1)</tool_call>" in prompt_of(tools)


def test_calls_are_items(tools: Running, backend: ScriptedBackend) -> None:
    backend.text = TWO
    answer = tools.sdk.responses.create(model=MODEL, input="Hi", tools=[ADD, NOOP])
    text, first, second = answer.output
    assert text.type == "message"
    assert answer.output_text == "One moment."
    assert first.type == second.type == "function_call"
    assert (first.name, json.loads(first.arguments), first.status) == ("add", {"a": 1, "b": 2}, "completed")
    assert (second.name, second.arguments) == ("noop", "{}")
    assert first.call_id != second.call_id
    assert '"description": "Adds"' in prompt_of(tools)
    assert answer.tools[0].to_dict() == ADD


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "add"}])
def test_forced_calls_are_enforced(tools: Running, backend: ScriptedBackend, choice: Any) -> None:
    backend.text = CALL
    answer = tools.sdk.responses.create(model=MODEL, input="Hi", tools=[ADD, NOOP], tool_choice=choice)
    assert [item.type for item in answer.output] == ["function_call"]
    grammar = backend.requests[-1].grammar
    assert grammar is not None
    assert grammar.type == "structural_tag"
    assert ("noop" in grammar.value) == (choice == "required")


@pytest.mark.parametrize("tokens_a_round", [1, 3, 100])
def test_a_stream_tells_what_the_whole_answer_has(start: Start, tokens_a_round: int) -> None:
    text = f"hm, well</think>\n\n{TWO}"
    running = start(ScriptedBackend(text=text, tokens_a_round=tokens_a_round, served=model(THINK_TEMPLATE)))
    whole = running.sdk.responses.create(model=MODEL, input="Hi", tools=[ADD, NOOP])
    with running.sdk.responses.stream(model=MODEL, input="Hi", tools=[ADD, NOOP]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"

    def stripped(output: Any) -> Any:
        drawn = {"id": True, "call_id": True}
        of_the_sdk = {"parsed_arguments": True, "content": {"__all__": {"parsed"}}}
        return [item.model_dump(exclude={**drawn, **of_the_sdk}, exclude_unset=True) for item in output]

    assert stripped(final.output) == stripped(whole.output)
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
    assert final.usage == whole.usage
    done = [event.item.to_dict() for event in events if event.type == "response.output_item.done"]
    assert [item["type"] for item in done] == [item.type for item in final.output]
    added_up = dict.fromkeys(range(4), "")
    for event in events:
        if event.type in (
            "response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.delta",
        ):  # fmt: skip
            added_up[event.output_index] += event.delta
    assert added_up == {0: "hm, well", 1: "\n\nOne moment.", 2: '{"a": 1, "b": 2}', 3: "{}"}
    names = [event.name for event in events if event.type == "response.function_call_arguments.done"]
    assert names == ["add", "noop"]


def test_events_have_names_and_no_mark_at_the_end(gateway: Running) -> None:
    lines = gateway.post("/v1/responses", {"model": MODEL, "input": "Hi", "stream": True}).text.splitlines()
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert names == [event["type"] for event in data]
    assert names[-1] == "response.completed"


def test_async(gateway: Running) -> None:
    async def ask() -> str:
        async with gateway.async_sdk as client, client.responses.stream(model=MODEL, input="Hi") as stream:
            return (await stream.get_final_response()).output_text

    assert asyncio.run(ask()) == "the quick brown fox"


def test_thoughts_are_items_and_go_back(thinker: Running) -> None:
    answer = thinker.sdk.responses.create(model=MODEL, input="Hi")
    thought, message = answer.output
    assert thought.type == "reasoning"
    assert thought.content is not None
    assert thought.content[0].text == "hm, well"
    assert message.type == "message"
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens == len(TOKENIZER.encode("hm, well").ids)
    thinker.sdk.responses.create(model=MODEL, input=[*answer.output, {"role": "user", "content": "ok"}])  # type: ignore[list-item]


def test_parse_gives_the_model_back(start: Start) -> None:
    running = start(ScriptedBackend(text='{"x": 3}', served=served_model(grammar_types=["json_schema"])))
    answer = running.sdk.responses.parse(model=MODEL, input="Hi", text_format=Point)
    assert answer.output_parsed == Point(x=3)
    grammar = running.backend.requests[-1].grammar
    assert grammar is not None
    assert json.loads(grammar.value)["required"] == ["x"]
    with running.sdk.responses.stream(model=MODEL, input="Hi", text_format=Point) as stream:
        assert stream.get_final_response().output_parsed == Point(x=3)
    running.backend.fault = "no such type"
    form = {"type": "json_schema", "name": "n", "schema": {"type": "x"}}
    body = {"model": MODEL, "input": "Hi", "text": {"format": form}}
    refused = error(running.post("/v1/responses", body))
    assert (refused["param"], refused["code"]) == ("text.format", "invalid_grammar")
    running.backend.fault_place = "properties.x"
    refused = error(running.post("/v1/responses", body))
    assert refused["param"] == "text.format.schema.properties.x"


def test_logprobs_come_with_the_text(gateway: Running) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "input": "Hi",
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    }
    answer = gateway.sdk.responses.create(**asked)
    part = answer.output[0].content[0]
    tokens = len(TOKENIZER.encode("the quick brown fox").ids) + 1
    assert [len(entry.top_logprobs) for entry in part.logprobs] == [2] * tokens
    events = list(gateway.sdk.responses.create(**asked, stream=True))
    streamed = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert [entry.to_dict() for entry in streamed] == [entry.to_dict() for entry in part.logprobs]


def test_a_failure_in_mid_stream_is_the_streams_end(start: Start) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[Round, None]:
        yield make_round(TOKENIZER.encode("the quick").ids)
        raise Unavailable("the workers left")

    *_, last = start(ScriptedBackend(script=script)).sdk.responses.create(model=MODEL, input="Hi", stream=True)
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.message == "the workers left"
    assert last.response.status == "failed"


def test_a_failure_after_a_comment_still_begins_as_a_stream(start: Start) -> None:
    commented = threading.Event()

    async def script(request: GenerationRequest) -> AsyncGenerator[Round, None]:
        await asyncio.to_thread(commented.wait, PATIENCE)
        raise Unavailable("nobody came")
        yield make_round([END])

    running = start(ScriptedBackend(script=script), keep_alive_seconds=0.05)
    stream = running.sdk.responses.create(model=MODEL, input="Hi", stream=True)  # answered with the first comment
    commented.set()
    events = list(stream)
    assert [event.type for event in events] == ["response.created", "response.in_progress", "response.failed"]


def test_nothing_can_be_fetched_later(gateway: Running) -> None:
    assert gateway.get("/v1/responses/resp_1").status_code == 404
    assert gateway.get("/v1/responses").status_code == 405
