"""Clients that people have: OpenAI's SDK, LangChain's ChatOpenAI and the `llm` command, pointed at a running Tandem."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from testing.client import Client
from testing.in_process import Stack
from testing.patience import PATIENCE, eventually, tries
from testing.tiny_models import make_tokenizer
from tests.clients.conftest import Sum

HI: list[Any] = [{"role": "user", "content": "What is 1 + 2?"}]
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "integer", "minimum": 0, "maximum": 99} for name in ("a", "b")},
            "required": ["a", "b"],
        },
    },
}
TELL: dict[str, Any] = {"type": "function", "function": {"name": "tell_time"}}
SPECULATION: list[dict[str, Any]] = [
    {"enabled": False},
    {"draft_tokens": 4, "adaptive_speculation": False},
    {"draft_tokens": 3, "num_candidates": 3, "adaptive_speculation": False},
]


@pytest.mark.parametrize("tool_choice", ["required", {"type": "function", "function": {"name": "add"}}])
@pytest.mark.parametrize("parallel", [True, False])
def test_forced_calls_are_valid_however_they_are_drafted(stack: Stack, tool_choice: Any, parallel: bool) -> None:
    found = []
    for speculative in SPECULATION:
        answer = stack.chat(
            tools=[ADD, TELL],
            tool_choice=tool_choice,
            parallel_tool_calls=parallel,
            seed=int(parallel),
            max_tokens=100,
            logit_bias={"2": 5},
            speculative=speculative,
        ).json()
        choice = answer["choices"][0]
        calls = [call["function"] for call in choice["message"]["tool_calls"]]
        found.append((calls, choice["message"]["content"]))
        if choice["finish_reason"] == "tool_calls":
            for call in calls:
                Sum.model_validate_json(call["arguments"]) if call["name"] == "add" else json.loads(call["arguments"])
            assert choice["message"]["content"] is None
            assert len(calls) == 1 or (parallel and tool_choice == "required")
        assert tool_choice == "required" or calls[0]["name"] == "add"
    assert all(one == found[0] for one in found)


def test_what_the_grammar_forces_is_drafted_beside_a_model(stack: Stack) -> None:
    name = 'tandem_draft_spec_decode_num_draft_tokens_total{source="grammar"}'
    with Client(stack.url) as client:
        before = client.metrics(stack.draft_url).get(name, 0.0)
        seeds = itertools.count()

        def drafted() -> bool:
            fields = {"tool_choice": "required", "max_tokens": 40, "seed": next(seeds), "speculative": SPECULATION[1]}
            stack.chat(tools=[ADD], **fields)
            return client.metrics(stack.draft_url)[name] > before

        # The first answer may be over before the drafter has read the grammar.
        eventually(drafted, "something was drafted from the grammar")


def test_a_streamed_call_then_its_result(stack: Stack) -> None:
    with stack.sdk.chat.completions.stream(
        model="tiny",
        messages=HI,
        tools=[ADD],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=120,
        seed=4,
    ) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        message = stream.get_final_completion().choices[0].message
    assert [event.name for event in done] == ["add"]
    assert message.tool_calls
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}
    call = message.model_dump(include={"role", "tool_calls"}, exclude={"tool_calls": {"__all__": {"index"}}})
    for given in call["tool_calls"]:
        given["function"].pop("parsed_arguments", None)
    answer = stack.sdk.chat.completions.create(
        model="tiny", messages=[*HI, call, result], tools=[ADD], tool_choice="none", max_tokens=5
    )
    assert answer.choices[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize("speculative", SPECULATION, ids=["plain", "chain", "tree"])
def test_responses_say_what_chat_says(stack: Stack, speculative: dict[str, Any]) -> None:
    options: dict[str, Any] = {"model": "tiny", "temperature": 1.0}
    body = {"seed": 5, "speculative": speculative}
    chat = stack.sdk.chat.completions.create(messages=HI, max_tokens=30, extra_body=body, **options)
    options |= {"input": HI, "max_output_tokens": 30, "extra_body": body}
    answer = stack.sdk.responses.create(**options)
    assert answer.output_text == chat.choices[0].message.content
    events = list(stack.sdk.responses.create(stream=True, **options))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == answer.output_text


def test_responses_call_tools_and_fill_schemas(stack: Stack) -> None:
    options: dict[str, Any] = {"model": "tiny", "input": HI, "max_output_tokens": 120, "extra_body": {"seed": 4}}
    tool = {"type": "function", **ADD["function"]}
    answer = stack.sdk.responses.create(tools=[tool], tool_choice="required", parallel_tool_calls=False, **options)
    (call,) = answer.output
    Sum.model_validate_json(call.arguments)
    assert isinstance(stack.sdk.responses.parse(text_format=Sum, **options).output_parsed, Sum)


def test_async_streams_side_by_side(stack: Stack) -> None:
    async def one(client: Any, seed: int) -> str:
        stream = await client.chat.completions.create(
            model="tiny", messages=HI, seed=seed, max_tokens=12, stream=True, stream_options={"include_usage": True}
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    async def all_of_them() -> list[str]:
        async with stack.async_sdk() as client:
            return await asyncio.gather(*(one(client, seed % 3) for seed in range(6)))

    texts = asyncio.run(all_of_them())
    assert texts[:3] == texts[3:]


@pytest.mark.parametrize("speculative", SPECULATION, ids=["plain", "chain", "tree"])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_logprobs_are_a_plain_forward_passes(
    stack: Stack, target: Path, speculative: dict[str, Any], temperature: float
) -> None:
    tokenizer = make_tokenizer()
    body = {
        "model": "tiny", "messages": HI, "logprobs": True, "top_logprobs": 8, "max_tokens": 40, "seed": 2,
        "temperature": temperature, "speculative": speculative, "logit_bias": {"2": -100}, "presence_penalty": 0.5,
    }  # fmt: skip

    def told(answer: dict[str, Any]) -> bool:
        accepted: int = answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"]
        return accepted > 0 or speculative.get("enabled") is False

    answer = tries(lambda: stack.post("/v1/chat/completions", body).json(), told, "accepted drafts")[-1]
    entries = answer["choices"][0]["logprobs"]["content"]
    prompt = stack.post("/tokenize", {"model": "tiny", "messages": HI}).json()["tokens"]
    spelled = {bytes(tokenizer.backend_tokenizer.decode([i]), "utf-8"): i for i in range(3, len(tokenizer))}
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    ids = list(prompt)
    for entry in entries:
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        best = logprobs.topk(8)
        given = [top["logprob"] for top in entry["top_logprobs"]]
        assert given == pytest.approx(best.values.tolist(), abs=1e-4)
        token_id = spelled.get(bytes(entry["bytes"]))
        if token_id is None:  # half a character: told apart by its probability alone
            token_id = int((logprobs - entry["logprob"]).abs().argmin())
        assert entry["logprob"] == pytest.approx(float(logprobs[token_id]), abs=1e-4)
        ids.append(token_id)
    assert len(entries) == 40


def test_n_choices_differ_and_repeat(stack: Stack) -> None:
    texts = []
    for speculative in SPECULATION:
        answer = stack.sdk.chat.completions.create(
            model="tiny", messages=HI, n=4, seed=9, max_tokens=10, extra_body={"speculative": speculative}
        )
        texts.append([choice.message.content for choice in answer.choices])
    assert texts[0] == texts[1] == texts[2]
    assert len(set(texts[0])) == 4


def chat_openai(stack: Stack, **options: Any) -> Any:
    module = pytest.importorskip("langchain_openai")
    return module.ChatOpenAI(
        model="tiny", base_url=f"{stack.url}/v1", api_key="unused", max_tokens=120, seed=3, max_retries=0, **options
    )


def test_langchain_chats_and_streams(stack: Stack) -> None:
    model = chat_openai(stack)
    answer = model.invoke("Hi", max_tokens=12)
    assert answer.usage_metadata["output_tokens"] <= 12
    assert "".join(chunk.content for chunk in model.stream("Hi", max_tokens=12)) == answer.content
    assert asyncio.run(model.ainvoke("Hi", max_tokens=12)).content == answer.content


def test_langchain_binds_tools(stack: Stack) -> None:
    bound = chat_openai(stack).bind_tools([Sum], tool_choice="required", parallel_tool_calls=False)
    (call,) = bound.invoke("1 + 2").tool_calls
    assert call["name"] == "Sum"
    Sum.model_validate(call["args"])
    whole = None
    for chunk in bound.stream("1 + 2"):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert [streamed["args"] for streamed in whole.tool_calls] == [call["args"]]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_gives_structured_output(stack: Stack, method: str) -> None:
    assert isinstance(chat_openai(stack).with_structured_output(Sum, method=method).invoke("1 + 2"), Sum)


def test_the_llm_command(stack: Stack, tmp_path: Path) -> None:
    pytest.importorskip("llm")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: tandem\n  model_name: tiny\n  api_base: {stack.url}/v1\n  supports_schema: true\n"
    )

    def llm(*arguments: str) -> str:
        environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-m", "llm", "-m", "tandem", "--key", "unused", *arguments],
            env=environment, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    plain = llm("Hi", "-o", "max_tokens", "8", "-o", "temperature", "0", "--no-stream")
    assert plain.strip()
    assert llm("Hi", "-o", "max_tokens", "8", "-o", "temperature", "0") == plain
    schema = json.dumps(Sum.model_json_schema())
    Sum.model_validate_json(llm("1 + 2", "--schema", schema, "-o", "max_tokens", "100"))
