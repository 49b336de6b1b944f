"""A whole agent's loop, two tools and three turns, on the bundled model, whose template knows nothing of tools.

What a model of this size says is not the point: that each library calls, sends back and goes on is, and that it all
says the same whether or not anything was drafted. `required` and named calls are held to their schemas; under `auto`
the model calls because the conversation asks for the JSON of a call.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testing.models import bundled
from testing.processes import Stack as Processes
from tests.clients.test_ai_sdk import PACKAGES, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PLAIN: dict[str, Any] = {"speculative": {"enabled": False}}
DRAFTED: dict[str, Any] = {"speculative": {"draft_tokens": 8, "adaptive_speculation": False}}
COMMON: dict[str, Any] = {"temperature": 0, "max_tokens": 48}
SYSTEM = {"role": "system", "content": "You only ever answer with a function call."}
TURNS = (
    ("get_weather", "Write the JSON that calls get_weather for Oslo."),
    ("add", "Write the JSON that calls add for 3 and 4."),
    ("get_weather", "Write the JSON that calls get_weather for Rome."),
)
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0},
                               "b": {"type": "integer", "maximum": 99, "minimum": 0}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    },
]  # fmt: skip
CHOICES = ("required", "named", "auto")


def get_weather(city: str) -> str:
    return f"It is 18 degrees in {city}."


def add(a: int, b: int) -> str:
    return str(a + b)


def result_of(name: str, arguments: str) -> str:
    given = json.loads(arguments)
    return get_weather(**given) if name == "get_weather" else add(**given)


def choice_of(kind: str, name: str) -> Any:
    return {"type": "function", "function": {"name": name}} if kind == "named" else kind


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Processes() as stack:
        target = stack.target(bundled(), batch_invariant=True, dtype="float32")
        draft = stack.draft("lookup", grammar_model=bundled())
        gateway = stack.gateway([target.url], [draft.url], served_model_name=["tiny"])
        stack.wait_ready(300)
        yield gateway.url


def loop(complete: Callable[..., Any], kind: str) -> list[Any]:
    """The conversation without its ids. `complete` takes messages and options, and returns an answer's message."""
    history: list[Any] = [SYSTEM]
    said: list[Any] = []
    for name, question in TURNS:
        history.append({"role": "user", "content": question})
        message = complete(messages=history, tools=TOOLS, tool_choice=choice_of(kind, name), parallel_tool_calls=False)
        history.append(message)
        calls = message.tool_calls or []
        said.append((message.content or None, [(call.function.name, call.function.arguments) for call in calls]))
        for call in calls:
            content = result_of(call.function.name, call.function.arguments)
            history.append({"role": "tool", "tool_call_id": call.id, "content": content})
        if calls:
            message = complete(messages=history, tools=TOOLS, tool_choice="none", max_tokens=16)
            history.append(message)
            said.append(message.content or None)
    return said


def check(said: list[Any], kind: str) -> None:
    called = [turn[1][0][0] for turn in said if isinstance(turn, tuple) and turn[1]]
    if kind == "named":
        assert called == [name for name, _ in TURNS]
    elif kind == "required":
        assert len(called) == len(TURNS)
    else:
        assert called, "the model called nothing of its own will"


@pytest.mark.parametrize("kind", CHOICES)
def test_openai(url: str, kind: str) -> None:
    from openai import OpenAI

    sdk = OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=600)

    def whole(extra: dict[str, Any]) -> Callable[..., Any]:
        return lambda **options: sdk.chat.completions.create(
            model="tiny", extra_body=extra, **{**COMMON, **options}
        ).choices[0].message  # fmt: skip

    def streamed(**options: Any) -> Any:
        with sdk.chat.completions.stream(model="tiny", extra_body=DRAFTED, **{**COMMON, **options}) as events:
            for _ in events:
                pass
            return events.current_completion_snapshot.choices[0].message

    said = loop(whole(DRAFTED), kind)
    check(said, kind)
    assert loop(whole(PLAIN), kind) == said
    assert loop(streamed, kind) == said


@pytest.mark.parametrize("kind", CHOICES)
def test_litellm(url: str, kind: str) -> None:
    import litellm

    def complete(extra: dict[str, Any]) -> Callable[..., Any]:
        return lambda **options: litellm.completion(
            model="openai/tiny", api_base=f"{url}/v1", api_key="unused", max_retries=0, timeout=600,
            extra_body=extra, **{**COMMON, **options},
        ).choices[0].message  # fmt: skip

    said = loop(complete(DRAFTED), kind)
    check(said, kind)
    assert loop(complete(PLAIN), kind) == said


@pytest.mark.parametrize("kind", CHOICES)
def test_openai_agents(url: str, kind: str) -> None:
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)

    async def run_turns(extra: dict[str, Any]) -> tuple[list[str], list[Any]]:
        called: list[str] = []

        def tool(function: Callable[..., str]) -> Any:
            async def invoke(context: Any, arguments: str) -> str:
                called.append(f"{function.__name__}({arguments})")
                return function(**json.loads(arguments))

            described = next(t["function"] for t in TOOLS if t["function"]["name"] == function.__name__)
            return agents.FunctionTool(
                described["name"], described["description"], described["parameters"], invoke, strict_json_schema=True
            )

        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=600) as client:
            history: list[Any] = []
            outputs: list[Any] = []
            for name, question in TURNS:
                settings = agents.ModelSettings(
                    tool_choice=name if kind == "named" else kind, parallel_tool_calls=False, temperature=0,
                    max_tokens=48, extra_body=extra,
                )  # fmt: skip
                agent = agents.Agent(
                    name="Agent", instructions=SYSTEM["content"], tools=[tool(get_weather), tool(add)],
                    model=agents.OpenAIChatCompletionsModel("tiny", client), model_settings=settings,
                    tool_use_behavior="stop_on_first_tool",
                )  # fmt: skip
                history.append({"role": "user", "content": question})
                result = await agents.Runner.run(agent, history, max_turns=2)
                history = result.to_input_list()
                outputs.append(result.final_output)
            return called, outputs

    drafted = asyncio.run(run_turns(DRAFTED))
    assert asyncio.run(run_turns(PLAIN)) == drafted
    called, outputs = drafted
    assert len(outputs) == len(TURNS)
    assert len(called) == len(TURNS) if kind != "auto" else called


def test_ai_sdk(url: str, tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("npm and node are not installed")
    (tmp_path / "package.json").write_text('{"private": true, "type": "module"}')
    shutil.copy(Path(__file__).with_name("ai_sdk_loop.mjs"), tmp_path)
    run([npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES], tmp_path)
    given = json.dumps({"turns": TURNS, "system": SYSTEM["content"]})
    texts = {}
    for name, extra in (("plain", PLAIN), ("drafted", DRAFTED)):
        extra_body = json.dumps({**extra, "temperature": 0})
        written = run([node, "ai_sdk_loop.mjs"], tmp_path, TANDEM_URL=url, LOOP=given, EXTRA=extra_body)
        texts[name] = json.loads(written)
    assert texts["plain"] == texts["drafted"]
    for kind in CHOICES:
        called = texts["plain"][kind]["called"]
        assert len(called) == len(TURNS) if kind != "auto" else called
