from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from engines.grammar.bitmask import unpack
from engines.grammar.compiler import GrammarCompiler
from engines.grammar.errors import GrammarError
from engines.grammar.state import GrammarState
from engines.grammar.vocabulary import token_bytes
from engines.token_bytes import UnsupportedTokenizer
from protocol.messages import Grammar, GrammarType
from tests.engines.grammar.conftest import LOGITS_SIZE


def grammar(kind: GrammarType, value: Any = "") -> Grammar:
    return Grammar(type=kind, value=value if isinstance(value, str) else json.dumps(value), start=0)


def takes(compiler: GrammarCompiler, tokenizer: Tokenizer, wanted: Grammar, text: str) -> bool:
    """Whether the text is whole under the grammar: taken, and the stop token after it."""
    state = GrammarState(compiler.compile(wanted))
    try:
        state.sync([*tokenizer.encode(text).ids, 0])
    except GrammarError:
        return False
    return True


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        (grammar("json_object"), ["{}", '{"a": [1, {"b": null}]}'], ["", "[1]", '"a"', "{", "{} "]),
        (grammar("json_schema", {"type": "integer"}), ["12", "-3"], ["1.5", '"1"', "01"]),
        (
            grammar("json_schema", {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}),
            ['{"a": true}'],
            ["{}", '{"a": true, "b": 1}', '{"a":true}'],
        ),
        (grammar("regex", "[a-c]+x"), ["abcx", "ax"], ["x", "abx ", "ABx"]),
        (grammar("choice", ["yes", 'say "no"\\', "né\n"]), ["yes", 'say "no"\\', "né\n"], ["ye", "yess", ""]),
        (grammar("grammar", 'root ::= "a" root | "b"'), ["b", "aab"], ["a", "aba"]),
    ],
)
def test_each_type_takes_what_it_says(
    compiler: GrammarCompiler, tokenizer: Tokenizer, wanted: Grammar, good: list[str], bad: list[str]
) -> None:
    assert [text for text in good if not takes(compiler, tokenizer, wanted, text)] == []
    assert [text for text in bad if takes(compiler, tokenizer, wanted, text)] == []


def test_special_tokens_and_padding_are_not_text(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    state = GrammarState(compiler.compile(grammar("json_schema", {"type": "string"})))
    state.sync(tokenizer.encode('"').ids)
    allowed = set(unpack(state.masks_along([]).bitmask, LOGITS_SIZE)[0].nonzero().flatten().tolist())
    assert tokenizer.token_to_id("Ġthe") in allowed
    assert tokenizer.token_to_id("<tool_call>") in allowed
    assert not allowed & {0, 1, 2}
    assert not allowed & set(range(tokenizer.get_vocab_size(), LOGITS_SIZE))


def test_a_special_token_is_reached_by_its_id_alone(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    by_id = {"type": "structural_tag", "format": {"type": "token", "token": tokenizer.token_to_id("[TOOL_CALLS]")}}
    state = GrammarState(compiler.compile(grammar("structural_tag", by_id)))
    assert state.forced_tokens(8) == [tokenizer.token_to_id("[TOOL_CALLS]"), 0]
    by_text = {"type": "structural_tag", "format": {"type": "const_string", "value": "[TOOL_CALLS]"}}
    spelled = GrammarState(compiler.compile(grammar("structural_tag", by_text))).masks_along([])
    assert not unpack(spelled.bitmask, LOGITS_SIZE)[0, tokenizer.token_to_id("[TOOL_CALLS]")]


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


REFUSED: list[tuple[GrammarType, Any, str]] = [
    ("json_schema", "{", "not valid JSON"),
    ("json_schema", "[" * 100_000, "nested too deeply|not valid JSON"),
    ("json_schema", "[" * 300 + "]" * 300, "nested deeper"),
    ("json_schema", "NaN", "NaN"),
    ("json_schema", '"a"', "must be an object"),
    ("json_schema", _nested(80), "nested deeper"),
    ("json_schema", {"$ref": "http://example.com/schema"}, r"\$\.\$ref must point into this schema"),
    ("json_schema", {"$ref": "#/$defs/none"}, "does not exist"),
    # The first words are ours, the others xgrammar's from 0.2.9 on.
    ("json_schema", {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "matches no text|Circular"),
    ("json_schema", {"type": "strange"}, r"\$\.type"),
    ("json_schema", {"type": "object", "properties": {"a": {"contains": {}}}}, r"\$\.properties\.a uses contains"),
    ("json_schema", {"type": "array", "uniqueItems": True}, "uniqueItems"),
    ("json_schema", {"type": "array", "contains": {}}, "contains"),
    ("json_schema", {"type": "string", "maxLength": 10**9}, r"\$\.maxLength exceeds"),
    ("json_schema", {"type": "string", "minLength": -1}, "minLength"),
    ("json_schema", {"type": "string", "pattern": "(["}, r"\$\.pattern ends within a class"),
    ("json_schema", {"type": "string", "pattern": "(.{0,200}){0,200}"}, "longer than"),
    ("json_schema", {"type": "string", "pattern": r"(a)\1"}, r"\$\.pattern uses a backreference"),
    ("json_schema", {"type": "string", "pattern": "^(?i)ab$"}, "inline flag"),
    ("json_schema", {"type": "string", "pattern": "a*+"}, "possessive"),
    ("json_schema", {"type": "string", "pattern": r"\p{Nonsense}"}, "Unicode property"),
    ("json_schema", {"type": "string", "pattern": r"(?<=a(?=b))c"}, "look-behind"),
    ("json_schema", {"type": "string", "pattern": "(a|b)*a(a|b){14}$"}, "automaton"),
    ("json_schema", {"type": "string", "pattern": "(" * 500 + "a" + ")" * 500}, "nested deeper"),
    ("json_schema", {"type": "string", "format": "regex"}, r"\$\.format is regex"),
    ("json_schema", {"type": "number", "multipleOf": 0}, "more than 0"),
    ("json_schema", {"type": "number", "multipleOf": 1e-300}, "digits"),
    ("json_schema", {"type": "integer", "multipleOf": 999_983}, "remainders"),
    ("json_schema", {"type": "number", "minimum": True}, r"\$\.minimum must be a number"),
    ("json_schema", '{"minimum": 1e999}', "too large a number"),
    ("json_schema", {"minimum": 1, "exclusiveMinimum": True}, r"\$\.exclusiveMinimum must be a number"),
    ("json_schema", {"type": "string", "not": {"items": {}}, "allOf": [{}]}, "items in what must not hold"),
    ("json_schema", {"additionalProperties": {}, "minProperties": 3}, r"\$\.minProperties counts"),
    ("json_schema", {"allOf": [{"anyOf": [{"minLength": i} for i in range(20)]} for _ in range(20)]}, "cases"),
    ("json_schema", {"properties": {"a": {"$id": "b"}}}, r"\$\.properties\.a uses \$id"),
    (
        "json_schema",
        {
            "type": "array",
            "items": {"maxItems": 9_999},
            "minItems": 9_999,
            "prefixItems": [{"minItems": 9_999}, {"maxItems": 9_999, "minItems": 3}],
        },
        "rules",
    ),
    ("json_schema", {"type": "string", "pattern": 3}, "must be a string"),
    ("json_schema", {"type": "integer", "minimum": 5, "maximum": 2}, "range"),
    ("json_schema", {"enum": []}, "at least one"),
    ("json_schema", {"type": "integer", "enum": ["a"]}, "matches no text"),
    ("json_schema", False, "false"),
    ("json_schema", {"type": "object", "properties": {f"p{i}": {} for i in range(600)}}, "properties"),
    ("json_schema", " " * 300_000, "characters"),
    ("regex", "", "empty"),
    ("regex", "([", "Unclosed"),
    ("regex", "(?=a)b", "Lookahead"),
    ("regex", r"(a)\1", "Backreference"),
    ("regex", "((a{50}){50}){50}", "counts in counts"),
    ("regex", "a{1000000}", "repeats more"),
    ("regex", "a{" + "9" * 6000 + "}", "repeats more"),
    ("regex", "a?" * 3000, "quantifiers"),
    ("regex", "(" * 4000 + "a" + ")" * 4000, "Nest layer"),
    ("regex", "a\0b", "U\\+0000"),
    ("grammar", 'root ::= "a', "lexer error"),
    ("grammar", 'other ::= "a"', "root"),
    ("grammar", "root ::= other", "not defined"),
    ("grammar", "root ::= root", "matches no text"),
    ("grammar", 'root ::= x{0,200}\nx ::= "a"{0,200}', "two rules"),
    ("grammar", "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000, "Nest layer"),
    ("choice", [], "list of strings"),
    ("choice", ["a", 1], "list of strings"),
    ("choice", ["a", ""], "not empty"),
    ("choice", [str(i) for i in range(10_000)], "at most"),
    ("structural_tag", [], "must be an object"),
    ("structural_tag", {}, "format"),
    (
        "structural_tag",
        {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"contains": {}}}},
        "uses contains",
    ),
    ("structural_tag", {"type": "structural_tag", "format": {"type": "regex", "pattern": "("}}, "Regex|parenthesis"),
]


@pytest.mark.parametrize(("kind", "value", "message"), REFUSED)
@pytest.mark.timeout(60)
def test_what_cannot_be_honoured_is_refused_with_the_reason(
    compiler: GrammarCompiler, kind: GrammarType, value: Any, message: str
) -> None:
    with pytest.raises(GrammarError, match=message) as raised:
        compiler.compile(grammar(kind, value))
    assert raised.value.status == 400
    assert ".cc:" not in raised.value.message
    with pytest.raises(GrammarError, match=message):  # from memory
        compiler.compile(grammar(kind, value))


def test_an_overrun_is_refused_and_its_place_comes_back(tokenizer: Tokenizer) -> None:
    tokens = token_bytes(tokenizer.to_str(), LOGITS_SIZE)
    hurried = GrammarCompiler(tokens, [0], time_limit=0.0)
    with pytest.raises(GrammarError, match=r"takes longer|being compiled"):
        hurried.compile(grammar("json_schema", {"type": "string", "pattern": "^[a-z ]*$", "maxLength": 500}))
    patient = GrammarCompiler(tokens, [0], time_limit=60.0)
    for width in range(1, 6):  # more than there are places
        assert patient.compile(grammar("regex", f"a{{{width}}}"))


def test_the_cache_is_bounded_and_returns_the_same(tokenizer: Tokenizer) -> None:
    tokens = token_bytes(tokenizer.to_str(), LOGITS_SIZE)
    size = GrammarCompiler(tokens, [0]).compile(grammar("regex", "[a-z]{10}")).grammar.memory_size_bytes
    small = GrammarCompiler(tokens, [0], cache_bytes=int(2.5 * size))
    first = small.compile(grammar("regex", "[a-z]{10}"))
    assert small.compile(grammar("regex", "[a-z]{10}")) is first
    for width in (11, 12, 13):
        small.compile(grammar("regex", f"[a-z]{{{width}}}"))
    assert small.compile(grammar("regex", "[a-z]{10}")) is not first


def test_byte_fallback_vocabularies_spell_bytes_and_spaces() -> None:
    vocab = {"</s>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}, "\u2581the": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.add_special_tokens(["</s>"])
    compiler = GrammarCompiler.from_tokenizer_json(tokenizer.to_str(), 258, [0])
    state = GrammarState(compiler.compile(grammar("choice", ["a the", "é"])))
    state.sync([ord("a") + 1, 257, 0])
    state.sync([0xC3 + 1, 0xA9 + 1, 0])
    assert state.terminated


def test_tokenizers_without_definite_bytes_are_refused() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(UnsupportedTokenizer, match="WordLevel"):
        GrammarCompiler.from_tokenizer_json(tokenizer.to_str(), 2, [0])


def test_a_vocabulary_without_stop_tokens_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UnsupportedTokenizer, match="stop token"):
        GrammarCompiler.from_tokenizer_json(tokenizer.to_str(), LOGITS_SIZE, [])


def test_json_inside_of_a_tag_has_the_same_fixed_layout(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "required": ["a", "b"]}
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}
    compiled = compiler.compile(Grammar(type="structural_tag", value=json.dumps(tag), start=0))
    GrammarState(compiled).sync([*tokenizer.encode('{"a": 1, "b": null}').ids, 0])
    for text in ('{"a":1, "b": null}', '{ "a": 1, "b": null}', '{"a": 1,\n"b": null}'):
        with pytest.raises(GrammarError):
            GrammarState(compiled).sync([*tokenizer.encode(text).ids, 0])
