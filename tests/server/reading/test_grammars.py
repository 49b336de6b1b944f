"""What a model can write under a call grammar is what the parser reads as calls."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import torch
from tokenizers import Tokenizer

from engines.grammar.bitmask import unpack
from engines.grammar.compiler import GrammarCompiler
from engines.grammar.errors import GrammarError
from engines.grammar.state import GrammarState
from protocol.messages import Grammar
from server.reading.grammars import after_reasoning, call_grammar
from server.reading.reasoning import FORMATS as THOUGHTS
from server.reading.reasoning import Start
from server.reading.tools.choice import resolve
from server.reading.tools.formats import FORMATS
from server.reading.tools.parser import parse
from tests.engines.grammar.conftest import LOGITS_SIZE, compiler, tokenizer  # noqa: F401 - fixtures

ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "add", "parameters": ADD}},
    {"type": "function", "function": {"name": "noop"}},
]


def write(compiler: GrammarCompiler, tokenizer: Tokenizer, grammar: Grammar, seed: int) -> str:  # noqa: F811
    generator = torch.Generator().manual_seed(seed)
    state = GrammarState(compiler.compile(grammar))
    ids: list[int] = []
    bias = torch.zeros(1, LOGITS_SIZE)
    for token, token_id in tokenizer.get_vocab().items():
        bias[0, token_id] = 3.0 * (token[0] in '}]"<' or token_id == 0)
    while not state.terminated:
        assert len(ids) < 600
        logits = torch.randn(1, LOGITS_SIZE, generator=generator) + bias
        ids.append(
            int(logits.masked_fill(~unpack(state.masks_along([]).bitmask, logits.shape[-1]), -torch.inf).argmax())
        )
        state.sync(ids)
    return tokenizer.decode(ids[:-1], skip_special_tokens=False)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
@pytest.mark.parametrize("parallel", [True, False])
def test_nothing_but_valid_calls_can_be_written(
    compiler: GrammarCompiler,  # noqa: F811
    tokenizer: Tokenizer,  # noqa: F811
    name: str,
    choice: Any,
    parallel: bool,
) -> None:
    use = resolve(TOOLS, choice, parallel)
    special = {
        token.content: token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special
    }
    grammar = call_grammar(FORMATS[name], use, 0, special)
    several = False
    for seed in range(6):
        text = write(compiler, tokenizer, grammar, seed)
        parsed = parse(FORMATS[name], use.schemas, text)
        assert parsed.content is None, text
        assert parsed.calls
        several |= len(parsed.calls) > 1
        for call in parsed.calls:
            parameters = next(function.parameters for function in use.functions if function.name == call.name)
            jsonschema.validate(json.loads(call.arguments), dict(parameters))
    assert several <= use.parallel


@pytest.mark.parametrize(
    ("start", "good", "bad"),
    [
        ("inside", ["hm <x> so</think>\n\nyes", "</think>yes"], ["yes", "hm</think>maybe", "hm</think>"]),
        ("outside", ["<think>hm</think>yes", "yes"], ["<think>yes", "maybe"]),
        ("closed", ["yes"], ["hm</think>yes", "maybe"]),
    ],
)
def test_a_thought_is_free_and_the_answer_is_not(
    compiler: GrammarCompiler,  # noqa: F811
    tokenizer: Tokenizer,  # noqa: F811
    start: Start,
    good: list[str],
    bad: list[str],
) -> None:
    answers = [
        Grammar(type="choice", value='["yes", "no"]', start=3),
        Grammar(type="regex", value="yes|no", start=3),
        Grammar(type="grammar", value='root ::= "yes" | "no"', start=3),
    ]
    for answer in answers:
        grammar = after_reasoning(answer, THOUGHTS["think"], start, {})
        assert grammar.start == 3

        def fits(text: str, grammar: Grammar = grammar) -> bool:
            try:
                GrammarState(compiler.compile(grammar)).sync([*tokenizer.encode(text).ids, 0])
            except GrammarError:
                return False
            return True

        assert [text for text in good if not fits(text)] == []
        assert [text for text in bad if fits(text)] == []


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_json_after_a_thought(compiler: GrammarCompiler, tokenizer: Tokenizer, kind: Any) -> None:  # noqa: F811
    answer = Grammar(type=kind, value=json.dumps(ADD) if kind == "json_schema" else "", start=0)
    grammar = after_reasoning(answer, THOUGHTS["think"], "inside", {})
    state = GrammarState(compiler.compile(grammar))
    state.sync([*tokenizer.encode('so</think>\n{"a": 1, "b": "x"}').ids, 0])
    assert state.terminated
