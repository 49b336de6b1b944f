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
from server.reading.events import ThoughtText
from server.reading.grammars import after_reasoning, auto_grammar, call_grammar, call_or
from server.reading.reasoning import FORMATS as THOUGHTS
from server.reading.reasoning import Start
from server.reading.together import AnswerReading
from server.reading.tools.choice import ToolUse, resolve
from server.reading.tools.formats import FORMATS, CallFormat
from server.reading.tools.parser import Parsed, collect
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


def read(form: CallFormat, use: ToolUse, text: str) -> Parsed:
    """As an answer is read: in harmony, thoughts and calls together."""
    reader = AnswerReading(use, form, THOUGHTS["harmony"] if form.style == "channels" else None).reader()
    events = [*reader.feed(text), *reader.finish()]
    return collect([event for event in events if not isinstance(event, ThoughtText)])


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
        parsed = read(FORMATS[name], use, text)
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


def sync(compiler: GrammarCompiler, tokenizer: Tokenizer, grammar: Grammar, text: str) -> bool:  # noqa: F811
    return sync_to(0, compiler, tokenizer, grammar, text)


def sync_to(
    stop: int,
    compiler: GrammarCompiler,  # noqa: F811
    tokenizer: Tokenizer,  # noqa: F811
    grammar: Grammar,
    text: str,
) -> bool:
    try:
        GrammarState(compiler.compile(grammar)).sync([*tokenizer.encode(text).ids, stop])
    except GrammarError:
        return False
    return True


STRICT = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}, TOOLS[1]]
_ADD = '{"a": %s, "b": "x"}'
# How each form writes a call of add, with a place for the integer.
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": ' + _ADD + "}\n</tool_call>",
    "mistral": '[TOOL_CALLS][{"name": "add", "arguments": ' + _ADD + "}]",
    "mistral_v11": "[TOOL_CALLS]add[ARGS]" + _ADD,
    "deepseek_v3": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n" + _ADD + "\n```<｜tool▁call▁end｜>",
    "deepseek_v31": "<｜tool▁call▁begin｜>add<｜tool▁sep｜>" + _ADD + "<｜tool▁call▁end｜>",
    "kimi": "<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>" + _ADD + "<|tool_call_end|>",
    "glm": "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>%s</arg_value>\n"
    "<arg_key>b</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
    "qwen3_coder": "<tool_call>\n<function=add>\n<parameter=a>\n%s\n</parameter>\n"
    "<parameter=b>\nx\n</parameter>\n</function>\n</tool_call>",
    "gemma4": '<|tool_call>call:add{a:%s,b:<|"|>x<|"|>}<tool_call|>',
    "functiongemma": "<start_function_call>call:add{a:%s,b:<escape>x<escape>}<end_function_call>",
    "granite": '<|tool_call|>[{"name": "add", "arguments": ' + _ADD + "}]",
    "phi4_mini": 'functools[{"name": "add", "arguments": ' + _ADD + "}]<|/tool_call|>",
    "command_a": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "add", "parameters": '
    + _ADD
    + "}]<|END_ACTION|>",
    "command_r": 'Action: ```json[{"tool_name": "add", "parameters": ' + _ADD + "}]```",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_strict_call_is_held_once_it_has_begun(
    compiler: GrammarCompiler,  # noqa: F811
    tokenizer: Tokenizer,  # noqa: F811
    name: str,
) -> None:
    form, use = FORMATS[name], resolve(STRICT, "auto", True)
    special = {t.content: i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special}
    grammar = auto_grammar(form, use, 0, special, held={"add"})
    assert grammar is not None
    good, bad = WRITTEN[name] % "12", WRITTEN[name] % '"1"'
    assert sync(compiler, tokenizer, grammar, "Just text { <tool> <|start|> [.")
    assert sync(compiler, tokenizer, grammar, good)
    assert sync(compiler, tokenizer, grammar, f"So: {good}")
    assert not sync(compiler, tokenizer, grammar, bad)
    assert not sync(compiler, tokenizer, grammar, f"So: {bad}")
    assert not sync(compiler, tokenizer, grammar, good.replace("add", "sub"))
    assert read(form, use, good).calls[0].arguments.replace(" ", "") == '{"a":12,"b":"x"}'
    assert auto_grammar(form, resolve(TOOLS, "auto", True), 0, special, held=()) is None


@pytest.mark.parametrize("name", ["json", "llama3_json"])
def test_the_first_character_decides_where_calls_have_no_mark(
    compiler: GrammarCompiler,  # noqa: F811
    tokenizer: Tokenizer,  # noqa: F811
    name: str,
) -> None:
    form, use = FORMATS[name], resolve(STRICT, "auto", True)
    grammar = auto_grammar(form, use, 0, {}, held={"add"})
    assert grammar is not None
    call = f'{{"name": "add", "{form.arguments}": {_ADD}}}'
    noop = f'{{"name": "noop", "{form.arguments}": {{"any": [1]}}}}'
    separator = "\n" if name == "json" else "; "
    for good in ("", "Hi {", " \n", call % 1, f" {call % 1}", f"{call % 1}{separator}{noop}"):
        assert sync(compiler, tokenizer, grammar, good), good
    unheld = noop.replace('{"any": [1]}', "[1]")  # a function that is not held takes any object, and nothing else
    for bad in ("{", '{"city": 1}', call % '"1"', f"{call % 1} so", call % 1 + separator + call % "null", unheld):
        assert not sync(compiler, tokenizer, grammar, bad), bad


HARMONY = {
    "call": "<|channel|>commentary to=functions.add <|constrain|>json<|message|>" + _ADD,
    "final": "<|channel|>final<|message|>",
    "thought": "<|channel|>analysis<|message|>hm {<|end|><|start|>assistant",
}


def test_harmony_thinks_then_calls_or_answers(tokenizer: Tokenizer) -> None:  # noqa: F811
    """Its messages end in a token that does not end the text, as the tokenizer of the other tests would have it."""
    stop = tokenizer.token_to_id("[TOOL_CALLS]")
    own = GrammarCompiler.from_tokenizer_json(tokenizer.to_str(), LOGITS_SIZE, [stop])
    form, thought, use = FORMATS["harmony"], THOUGHTS["harmony"], resolve(STRICT, "auto", True)
    special = {t.content: i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special}
    auto = auto_grammar(form, use, 0, special, held={"add"})
    assert auto is not None
    auto = after_reasoning(auto, thought, "outside", special)
    good, bad = HARMONY["call"] % 3, HARMONY["call"] % "null"
    for before in ("", HARMONY["thought"], 2 * HARMONY["thought"]):
        assert sync_to(stop, own, tokenizer, auto, before + good)
        assert sync_to(stop, own, tokenizer, auto, f"{before}{HARMONY['final']}Hi")
        assert not sync_to(stop, own, tokenizer, auto, before + bad)
    required = after_reasoning(call_grammar(form, use, 0, special), thought, "outside", special)
    assert sync_to(stop, own, tokenizer, required, HARMONY["thought"] + good)
    assert not sync_to(stop, own, tokenizer, required, f"{HARMONY['final']}Hi")
    either = call_or(Grammar(type="choice", value='["yes"]', start=0), form, use, special)
    assert sync_to(stop, own, tokenizer, either, good)
    assert sync_to(stop, own, tokenizer, either, f"{HARMONY['final']}yes")
    assert not sync_to(stop, own, tokenizer, either, f"{HARMONY['final']}no")
