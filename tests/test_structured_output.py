"""Structured output through all three services: always valid, and the same text however it was drafted."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
import torch
from openai import AsyncOpenAI, BadRequestError
from pydantic import BaseModel
from tokenizers import Tokenizer

from engines.grammar.errors import GrammarError
from engines.grammar.state import GrammarState
from testing.in_process import Stack, running_stack
from testing.patience import PATIENCE
from testing.tiny_models import make_tiny_model, make_tokenizer, truncate_model
from testing.wire import request
from tests.engines.grammar import schemas

PLAIN: dict[str, Any] = {"enabled": False}
DRAFTED: list[dict[str, Any]] = [
    {"draft_tokens": 4, "adaptive_speculation": False},
    {"draft_tokens": 3, "num_candidates": 3, "candidate_temperature": 1.5, "adaptive_speculation": False},
    {"draft_tokens": 5, "draft_model": "lookup", "adaptive_speculation": False},
    {},
]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 1.4, "top_p": 0.9, "frequency_penalty": 0.4},
    {"temperature": 0.8, "top_k": 20, "min_tokens": 6, "repetition_penalty": 1.1},
]
MESSAGES: list[Any] = [{"role": "user", "content": "Write."}]
AT_ONCE = 8


@pytest.fixture(scope="module")
def stack(bitwise: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("models")
    target = make_tiny_model(folder / "target", layers=3, context_length=512)
    with running_stack(target, truncate_model(target, folder / "draft", layers=2)) as stack:
        yield stack


@pytest.fixture(scope="module")
def to_an_end() -> dict[str, float]:
    """A bias without which a random model would hardly ever close a string or a bracket."""
    tokenizer: Tokenizer = make_tokenizer().backend_tokenizer
    likely = {token: 3.0 for token in tokenizer.get_vocab() if token[0] in '"}]'}
    return {str(tokenizer.get_vocab()[token]): bias for token, bias in likely.items()} | {"2": 4.0}


async def ask(client: AsyncOpenAI, **fields: Any) -> Any:
    extra = {
        name: fields.pop(name)
        for name in ("speculative", "structured_outputs", "top_k", "min_tokens")
        if name in fields
    }
    if "repetition_penalty" in fields:
        extra["repetition_penalty"] = fields.pop("repetition_penalty")
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body=extra, **fields)
    return answer


@pytest.mark.parametrize("block", range(4))
def test_schemas_by_the_hundred(stack: Stack, to_an_end: dict[str, float], block: int) -> None:
    finished = accepted = 0

    async def one(client: AsyncOpenAI, gate: asyncio.Semaphore, seed: int) -> None:
        nonlocal finished, accepted
        schema = schemas.schema(random.Random(seed))
        fields = {
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
            "seed": seed,
            "max_tokens": 40,
            "logit_bias": to_an_end,
            **SAMPLINGS[seed % len(SAMPLINGS)],
        }
        async with gate:
            plain = await ask(client, speculative=PLAIN, **fields)
            drafted = await ask(client, speculative=DRAFTED[seed // len(SAMPLINGS) % len(DRAFTED)], **fields)
        one, other = plain.choices[0], drafted.choices[0]
        assert (other.message.content, other.finish_reason) == (one.message.content, one.finish_reason), schema
        accepted += drafted.usage.completion_tokens_details.accepted_prediction_tokens
        if one.finish_reason == "stop":
            finished += 1
            jsonschema.Draft202012Validator(schema).validate(json.loads(one.message.content))

    async def all_of_them() -> None:
        gate = asyncio.Semaphore(AT_ONCE)
        async with stack.async_sdk() as client:
            await asyncio.gather(*(one(client, gate, seed) for seed in range(block * 40, block * 40 + 40)))

    asyncio.run(all_of_them())
    assert finished > 24, "hardly any answer came to its end"
    assert accepted > 80, "hardly anything was drafted"


STRUCTURED: list[tuple[dict[str, Any], str]] = [
    ({"regex": r"[a-c]{3,8}-\d{2}"}, r"[a-c]{3,8}-\d{2}"),
    ({"choice": ["yes", "no", "may be"]}, "yes|no|may be"),
    ({"grammar": 'root ::= "(" item ("," item)* ")"\nitem ::= [0-9]+'}, r"\(\d+(,\d+)*\)"),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "t1", "t1.4", "min_tokens"])
@pytest.mark.parametrize(("structured", "pattern"), STRUCTURED, ids=["regex", "choice", "grammar"])
def test_vllms_kinds(stack: Stack, structured: dict[str, Any], pattern: str, sampling: dict[str, Any]) -> None:
    texts = set()
    for speculative in (PLAIN, *DRAFTED):
        answer = stack.chat(
            structured_outputs=structured, seed=3, max_tokens=24, n=2, speculative=speculative, **sampling
        ).json()
        for choice in answer["choices"]:
            if choice["finish_reason"] == "stop":
                assert re.fullmatch(pattern, choice["message"]["content"])
        texts.add(tuple(choice["message"]["content"] for choice in answer["choices"]))
    assert len(texts) == 1


def test_probabilistic_keeps_the_grammar(stack: Stack) -> None:
    for seed in range(6):
        speculative = {"strategy": "probabilistic", "draft_tokens": 4, "adaptive_speculation": False}
        answer = stack.chat(
            structured_outputs={"regex": r"(ab|cd){2,6}\."}, seed=seed, max_tokens=24, speculative=speculative
        ).json()
        assert re.fullmatch(r"(ab|cd){2,6}\.", answer["choices"][0]["message"]["content"])


@pytest.mark.parametrize("changes", [{"min_tokens": 20}, {"ignore_eos": True}, {"min_tokens": 20, "ignore_eos": True}])
def test_a_complete_text_ends_whatever_was_asked_for(stack: Stack, changes: dict[str, Any]) -> None:
    for speculative in (PLAIN, *DRAFTED):
        answer = stack.chat(
            structured_outputs={"choice": ["ab", "cde"]}, max_tokens=32, speculative=speculative, **changes
        )
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        assert choice["message"]["content"] in ("ab", "cde")
        assert choice["finish_reason"] == "stop"


def test_a_grammar_goes_on_where_a_text_is_continued(stack: Stack) -> None:
    answer = stack.post(
        "/v1/completions",
        {"model": "tiny", "prompt": "Once", "structured_outputs": {"regex": "[xy]{4}"}, "max_tokens": 8},
    ).json()
    assert re.fullmatch("[xy]{4}", answer["choices"][0]["text"])


NOT = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"not": {}}}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": NOT}, "response_format"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "root ::= nothing"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice"),
    ],
)
def test_what_cannot_be_enforced_is_refused_before_anything_is_generated(
    stack: Stack, fields: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        answer = stack.chat(stream=stream, **fields)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param


class Step(BaseModel):
    done: bool
    kind: int | None


class Plan(BaseModel):
    steps: list[Step]
    sure: bool


def test_parse_with_a_pydantic_model(stack: Stack, to_an_end: dict[str, float]) -> None:
    bias = {token: int(value) for token, value in to_an_end.items()}
    completion = stack.sdk.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=Plan, max_tokens=200, seed=1, logit_bias=bias
    )
    assert isinstance(completion.choices[0].message.parsed, Plan)
    with stack.sdk.chat.completions.stream(
        model="tiny", messages=MESSAGES, response_format=Plan, max_tokens=200, seed=1, logit_bias=bias
    ) as stream:
        streamed = stream.get_final_completion()
    assert streamed.choices[0].message.parsed == completion.choices[0].message.parsed


def test_bad_schemas_through_the_sdk(stack: Stack) -> None:
    with pytest.raises(BadRequestError) as refused:
        stack.sdk.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"contains": {}}}},
        )
    assert refused.value.code == "invalid_grammar"
    assert "contains" in refused.value.message


@pytest.mark.parametrize(
    ("where", "field"),
    [
        (lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}},
         "response_format.json_schema.schema"),
        (lambda schema: {"response_format": {"type": "json_object", "schema": schema}}, "response_format.schema"),
        (lambda schema: {"structured_outputs": {"json": schema}}, "structured_outputs.json"),
    ],
)  # fmt: skip
def test_an_error_within_a_schema_names_its_place(stack: Stack, where: Any, field: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"minLength": -1}}}}
    for _ in range(2):  # the second time it is remembered
        answer = stack.chat(**where(schema))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == f"{field}.properties.a.items.minLength", answer.text


def verify(stack: Stack, **fields: Any) -> httpx.Response:
    grammar = {"type": "regex", "value": "[ab]{3,30}c", "start": 3}
    message = request(**{"candidates": [], "num_prompt_tokens": 3, "grammar": grammar, **fields})
    return httpx.post(f"{stack.target_url}/v1/verify", json=message, timeout=PATIENCE)


def test_the_target_checks_grammars(stack: Stack) -> None:
    url = f"{stack.target_url}/v1/grammar/check"
    good = {"grammar": {"type": "json_object", "value": "", "start": 0}}
    assert httpx.post(url, json=good, timeout=PATIENCE).json() == {"ok": True}
    answer = httpx.post(url, json={"grammar": {"type": "regex", "value": "(", "start": 0}}, timeout=PATIENCE)
    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], answer.json()["error"]["field"]) == ("invalid_grammar", "grammar.value")


def test_a_lost_session_finds_its_place_in_the_grammar_again(stack: Stack) -> None:
    whole: list[list[int]] = []
    for loses in (False, True):
        ids, number = [40, 41, 42], 0
        while len(ids) < 20:
            if loses:
                httpx.delete(f"{stack.target_url}/v1/sessions/g{loses}", timeout=PATIENCE).raise_for_status()
            # Half of the drafts are what the grammar refuses.
            drafts = [{"token_ids": [whole[0][len(ids)] if number % 2 and whole else 300]}] if number else []
            answer = verify(stack, ids=ids, session_id=f"g{loses}", round=number, candidates=drafts).json()
            ids, number = ids + answer["token_ids"], number + 1
            if answer["stop_reason"] is not None:
                break
        whole.append([*ids, 0])
    assert whole[0] == whole[1]
    assert len(whole[0]) > 8


def test_a_context_that_the_grammar_refuses_is_named(stack: Stack) -> None:
    letters = make_tokenizer().backend_tokenizer.get_vocab()
    for tail, start, field in ([letters["z"]], 3, "context.token_ids"), ([], 4, "grammar.start"):
        grammar = {"type": "regex", "value": "[ab]{3,30}c", "start": start}
        answer = verify(stack, ids=[40, 41, 42, *tail], session_id="r", grammar=grammar)
        assert answer.status_code == 400
        assert answer.json()["error"]["field"] == field
    assert verify(stack, ids=[40, 41, 42], session_id="r2").status_code == 200


def test_a_grammar_that_proves_too_ambiguous_fails_its_own_request_alone(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()
    fill = GrammarState._fill

    def slow(state: GrammarState, bitmask: torch.Tensor, row: int) -> None:
        if next(calls) > 4:
            raise GrammarError("too ambiguous")
        fill(state, bitmask, row)

    for speculative in (PLAIN, DRAFTED[2]):
        calls = itertools.count()
        with monkeypatch.context() as patch:
            patch.setattr(GrammarState, "_fill", slow)
            answer = stack.chat(structured_outputs={"regex": "[a-z]{20}"}, max_tokens=30, speculative=speculative)
        assert answer.status_code == 400, answer.text
        assert "too ambiguous" in answer.json()["error"]["message"]
        assert stack.chat(max_tokens=3, speculative=PLAIN).status_code == 200
