"""Whatever a model with random logits writes under a schema is valid, by another library's judgement."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest
import torch
from tokenizers import Tokenizer

from engines.grammar.bitmask import unpack
from engines.grammar.compiler import GrammarCompiler
from engines.grammar.errors import GrammarError
from engines.grammar.schema_ebnf import schema_ebnf
from engines.grammar.state import GrammarState
from protocol.messages import Grammar
from tests.engines.grammar import schemas
from tests.engines.grammar.conftest import LOGITS_SIZE

LIKELY = '"}]'  # what a random model must write now and then to finish


def write(compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Any, seed: int, most: int = 400) -> str | None:
    """A random model's answer: argmax of masked noise, biased to closing characters. None if it never ends."""
    generator = torch.Generator().manual_seed(seed)
    state = GrammarState(compiler.compile(Grammar(type="json_schema", value=json.dumps(schema), start=0)))
    bias = torch.zeros(1, LOGITS_SIZE)
    bias[0, 0] = 4.0
    for token, token_id in tokenizer.get_vocab().items():
        bias[0, token_id] += 2.0 * (token[0] in LIKELY)
    written = re.findall(r'"([^"]{1,12})": (?={")', json.dumps(schema))
    names = [name for name in written if name not in ("properties", "items", "$defs")]
    ids: list[int] = []
    while not state.terminated:
        if len(ids) >= most:
            return None
        hint = _declared(state, tokenizer, ids, names) if len(ids) > 80 else None
        if hint is not None:
            ids = hint
            continue
        mask = state.masks_along([]).bitmask
        hurry = len(ids) / 40
        logits = torch.randn(1, LOGITS_SIZE, generator=generator) + bias * (1 + hurry)
        ids.append(int(logits.masked_fill(~unpack(mask, logits.shape[-1]), -torch.inf).argmax()))
        state.sync(ids)
    return tokenizer.decode(ids)


def _declared(state: GrammarState, tokenizer: Tokenizer, ids: list[int], names: list[str]) -> list[int] | None:
    """Declared properties are written when allowed: a random model would hardly find their names among free ones."""
    for name in names:
        longer = [*ids, *tokenizer.encode(f', "{name}": ').ids]
        try:
            state.sync(longer)
            return longer
        except GrammarError:
            state.sync(ids)
    return None


@pytest.mark.parametrize("block", range(12))
def test_random_schemas_are_always_kept(compiler: GrammarCompiler, tokenizer: Tokenizer, block: int) -> None:
    finished = 0
    for seed in range(block * 25, block * 25 + 25):
        schema = schemas.schema(random.Random(seed))
        for attempt in range(2):
            text = write(compiler, tokenizer, schema, seed * 7 + attempt)
            if text is not None:
                finished += 1
                jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    assert finished > 40  # of 50


def test_recursion_and_discriminated_unions_are_kept(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    for seed in range(8):
        text = write(compiler, tokenizer, schemas.recursive(), seed)
        assert text is not None
        jsonschema.validate(json.loads(text), schemas.recursive())


# From the kinds of the JSON Schema test suite: schema, values that fit, values that do not.
VERDICTS: list[tuple[Any, list[Any], list[Any]]] = [
    ({"type": "string", "pattern": "^[A-Z]"}, ["Ab", "A"], ["aB", ""]),
    ({"type": "string", "pattern": "b"}, ["abc", "b"], ["ac"]),
    ({"type": "string", "pattern": '^[^"]{2}$'}, ["ab"], ["a", 'a"']),
    ({"type": "integer", "multipleOf": 7}, [0, 14, -21], [1, 15]),
    ({"type": "integer", "minimum": -3, "maximum": 12}, [-3, 0, 12], [-4, 13, 100]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "éé", "abc"], ["a", "abcd", ""]),
    (
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        [[1], [1, 2]],
        [[], [1, 2, 3], ["a"]],
    ),
    ({"enum": ["a", 1, None]}, ["a", 1, None], ["b", 2, False]),
    ({"const": {"a": 1}}, [{"a": 1}], [{"a": 2}, {}]),
    ({"properties": {"a": {"type": "null"}}, "required": ["a"]}, [{"a": None}], [{}, {"a": 1}, 3]),
    ({"minimum": 5}, [5, 7], [4, "a"]),
    ({"type": ["string", "null"]}, ["a", None], [1, True]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"x": 1}], [{"x": "a"}]),
    ({"type": "object", "patternProperties": {"^s_": {"type": "string"}}}, [{"s_a": "b"}], [{"s_a": 1}, {"t": "b"}]),
    ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, [{"a": [1]}, {}], [{"b": 1}]),
    ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}, [3, "a"], ["ab", None]),
    ({"allOf": [{"type": "integer"}]}, [1], ["a"]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None]),
    ({}, [1, "a", None, [1, {"a": "b"}], True], []),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, [[1]], [[1, 2], ["a"]]),
    ({"type": "array", "prefixItems": [{"type": "integer"}]}, [[], [1], [1, "x"]], [["a"]]),
    ({"type": "number", "oneOf": [{"type": "integer"}, {"type": "number"}]}, [1.5, -0.25], [1, "a"]),
    ({"$defs": {"a b/c": {"type": "null"}}, "$ref": "#/$defs/a%20b~1c"}, [None], [1]),
    ({"type": "string", "enum": ["a", "b"], "minLength": 1}, ["a"], ["c"]),
    ({"type": "string", "anyOf": [{"maxLength": 1}, {"pattern": "^x"}]}, ["a", "xyz"], ["ab", 1]),
    ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, [{"a": 1, "b": 2}, {"b": 2}], [{"a": 1}]),
    (
        {"properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
        [{}, {"b": 1}, {"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    ({"type": ["integer", "null"], "multipleOf": 3}, [3, None], [4]),
    ({"type": "string", "format": "path", "maxLength": 2}, ["ab"], ["abc"]),
    ({"type": "string", "pattern": r"^\p{Lu}\p{L}*$"}, ["Éa", "A"], ["éa", "1"]),
    ({"type": "string", "pattern": "^[a-z]$", "not": {"enum": ["q"]}}, ["a"], ["q", "ab"]),
    (
        {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        [{"b": "x", "a": 1}, {"a": 1, "b": "x"}],
        [{"b": 1}, {"a": "x"}],
    ),
]


@pytest.mark.parametrize(("schema", "good", "bad"), VERDICTS)
def test_verdicts(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Any, good: list[Any], bad: list[Any]
) -> None:
    compiled = compiler.compile(Grammar(type="json_schema", value=json.dumps(schema), start=0))

    def fits(value: Any) -> bool:
        # Constants and enums are laid out without spaces, everything else as json.dumps does.
        layouts = [json.dumps(value, ensure_ascii=False), json.dumps(value, separators=(",", ":"))]
        for layout in layouts:
            try:
                GrammarState(compiled).sync([*tokenizer.encode(layout).ids, 0])
            except GrammarError:
                continue
            return True
        return False

    assert [value for value in good if not fits(value)] == []
    assert [value for value in bad if fits(value)] == []


def test_a_length_that_cannot_be_counted_is_not_called_empty() -> None:
    long = {"type": "string", "format": "uri", "minLength": 130, "maxLength": 2083}
    with pytest.raises(GrammarError, match=r"\$ asks for strings of 13[0-9] characters or more"):
        schema_ebnf(long)
    with pytest.raises(GrammarError, match="matches no text"):
        schema_ebnf({"type": "string", "pattern": "^[a-z]{12,}$", "maxLength": 11})


def test_strings_of_several_lengths_share_what_is_counted() -> None:
    one = schema_ebnf({"type": "object", "properties": {"a": {"type": "string", "maxLength": 90}}})
    many = schema_ebnf(
        {
            "type": "object",
            "properties": {n: {"type": "string", "maxLength": 80 + i} for i, n in enumerate("abcdefghijk")},
        }
    )
    assert len(many.splitlines()) < len(one.splitlines()) + 60
