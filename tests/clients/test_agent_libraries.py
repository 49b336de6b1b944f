"""What people build agents with: each library calls tools and sends back what it made of the answers."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from pydantic import Field

from testing.in_process import Stack
from tests.clients.conftest import Sum

HI: list[Any] = [{"role": "user", "content": "What is 1 + 2?"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "Sum", "description": "Adds", "parameters": Sum.model_json_schema()},
}
# Random text ends sooner: the stop token is the likelier.
ENDING: dict[str, Any] = {"seed": 3, "logit_bias": {"2": 8}}
Small = Annotated[int, Field(ge=0, le=99)]
FORCED: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}


# LiteLLM


def litellm(stack: Stack, **options: Any) -> Any:
    import litellm

    return litellm.completion(
        model="openai/tiny", api_base=f"{stack.url}/v1", api_key="unused", max_retries=0, seed=3, max_tokens=120,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True])
def test_litellm_calls_and_goes_on(stack: Stack, streamed: bool) -> None:
    import litellm as library

    answer = litellm(stack, messages=HI, tools=[TOOL], stream=streamed, **FORCED)
    if streamed:
        answer = library.stream_chunk_builder(list(answer), messages=HI)
    message = answer.choices[0].message
    (call,) = message.tool_calls
    Sum.model_validate_json(call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "name": "Sum", "content": "3"}
    texts = set()
    for turn in (message, message.model_dump()):
        texts.add(
            litellm(stack, messages=[*HI, turn, result], tools=[TOOL], tool_choice="none").choices[0].message.content
        )
    # And what LiteLLM adds, sent by another client: its proxy's users do so.
    extras = {
        "provider_specific_fields": {"refusal": None},
        "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "x"}],
        "reasoning_items": None,
    }
    raw = stack.chat(
        messages=[*HI, {**message.model_dump(), **extras}, {**result, "cache_control": {"type": "ephemeral"}}],
        tools=[{**TOOL, "cache_control": {"type": "ephemeral"}}], tool_choice="none", seed=3, max_tokens=120,
    )  # fmt: skip
    assert raw.status_code == 200, raw.text
    texts.add(raw.json()["choices"][0]["message"]["content"])
    assert len(texts) == 1


def test_litellm_structures_and_responds(stack: Stack) -> None:
    import litellm as library

    answer = litellm(stack, messages=HI, response_format=Sum)
    Sum.model_validate_json(answer.choices[0].message.content)
    response = library.responses(
        model="openai/tiny", input=HI, api_base=f"{stack.url}/v1", api_key="unused", max_output_tokens=20
    )
    again = library.responses(
        model="openai/tiny", input=[*HI, *response.output, *HI], api_base=f"{stack.url}/v1", api_key="unused",
        max_output_tokens=20,
    )  # fmt: skip
    assert again.output


# openai-agents


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("streamed", [False, True])
def test_openai_agents_call_and_go_on(stack: Stack, api: str, streamed: bool) -> None:
    import agents

    agents.set_tracing_disabled(True)
    asked: list[tuple[int, int]] = []

    @agents.function_tool
    def add(a: Small, b: Small) -> str:
        """Adds two numbers."""
        asked.append((a, b))
        return str(a + b)

    async def run() -> Any:
        async with stack.async_sdk() as client:
            kind = agents.OpenAIResponsesModel if api == "responses" else agents.OpenAIChatCompletionsModel
            settings = agents.ModelSettings(
                tool_choice="required", parallel_tool_calls=False, max_tokens=150, extra_body=ENDING
            )
            agent = agents.Agent(
                name="Adder", instructions="Add.", tools=[add], model=kind("tiny", client), model_settings=settings
            )
            if not streamed:
                first = await agents.Runner.run(agent, "What is 1 + 2?", max_turns=4)
            else:
                first = agents.Runner.run_streamed(agent, "What is 1 + 2?", max_turns=4)
                async for _ in first.stream_events():
                    pass
            history = [*first.to_input_list(), {"role": "user", "content": "And again?"}]
            second = await agents.Runner.run(agent, history, max_turns=4)
            return first.final_output, second.final_output

    first, second = asyncio.run(run())
    assert len(asked) == 2  # once a run: then the library lets the model answer
    assert isinstance(first, str)
    assert isinstance(second, str)


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_openai_agents_structure(stack: Stack, api: str) -> None:
    import agents

    agents.set_tracing_disabled(True)

    async def run() -> Any:
        async with stack.async_sdk() as client:
            kind = agents.OpenAIResponsesModel if api == "responses" else agents.OpenAIChatCompletionsModel
            agent = agents.Agent(name="Adder", output_type=Sum, model=kind("tiny", client))
            return (await agents.Runner.run(agent, "1 + 2", max_turns=1)).final_output

    assert isinstance(asyncio.run(run()), Sum)


# instructor


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"])
def test_instructor_fills_and_asks_again(stack: Stack, mode: str) -> None:
    """A validator that refuses the first answer makes it send that answer back, with what is wrong."""
    import instructor
    from pydantic import model_validator

    refused: list[Any] = []

    class Total(Sum):
        @model_validator(mode="after")
        def _not_at_once(self) -> Total:
            if not refused:
                refused.append(self)
                raise ValueError("try other numbers")
            return self

    client = instructor.from_openai(stack.sdk, mode=instructor.Mode[mode])
    options: dict[str, Any] = {"max_output_tokens": 150} if mode.startswith("RESPONSES") else {"max_tokens": 150}
    found = client.create(model="tiny", messages=HI, response_model=Total, max_retries=3, **options)
    assert isinstance(found, Total)
    assert refused


# pydantic-ai


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_pydantic_ai_structures_and_goes_on(stack: Stack, api: str) -> None:
    import pydantic_ai
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def run() -> tuple[Any, Any, str]:
        async with stack.async_sdk() as client:
            provider = OpenAIProvider(openai_client=client)
            model = (OpenAIResponsesModel if api == "responses" else OpenAIChatModel)("tiny", provider=provider)
            settings: Any = {"max_tokens": 150, "seed": 3, "extra_body": {"seed": 3}}
            agent = pydantic_ai.Agent(model, output_type=Sum, model_settings=settings)
            first = await agent.run("What is 1 + 2?")
            native = pydantic_ai.Agent(model, output_type=pydantic_ai.NativeOutput(Sum), model_settings=settings)
            second = await native.run("And again?", message_history=first.all_messages())
            plain = pydantic_ai.Agent(model, model_settings=settings)
            async with plain.run_stream("Sure?", message_history=second.all_messages()) as third:
                return first.output, second.output, await third.get_output()

    first, second, third = asyncio.run(run())
    assert isinstance(first, Sum)
    assert isinstance(second, Sum)
    assert isinstance(third, str)


# LangChain


@pytest.mark.parametrize("responses", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
def test_langchain_calls_and_goes_on(stack: Stack, responses: bool, streamed: bool) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    options: dict[str, Any] = {} if responses else {"seed": 3}
    model = ChatOpenAI(
        model="tiny", base_url=f"{stack.url}/v1", api_key="unused", max_tokens=120, max_retries=0,
        use_responses_api=responses, **options,
    )  # fmt: skip
    bound = model.bind_tools([Sum], tool_choice="any", parallel_tool_calls=False)
    history: list[Any] = [HumanMessage("What is 1 + 2?")]
    answer: Any = None
    if streamed:
        for chunk in bound.stream(history):
            answer = chunk if answer is None else answer + chunk
    else:
        answer = bound.invoke(history)
    (call,) = answer.tool_calls
    Sum.model_validate(call["args"])
    history += [answer, ToolMessage("3", tool_call_id=call["id"])]
    said = model.bind_tools([Sum], tool_choice="none").invoke(history)
    history += [said, HumanMessage("Sure?")]
    assert model.invoke(history).id
