"""The table of docs/structured_output.md: what becomes of every keyword, alone and in pairs.

Every cell is tried: the schema is compiled, and a pool of values judged by the grammar and by jsonschema.
`python -m tests.engines.grammar.schema_table` writes it anew.
"""

from __future__ import annotations

import json
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engines.grammar.compiler import GrammarCompiler
from engines.grammar.errors import GrammarError
from engines.grammar.state import GrammarState
from protocol.messages import Grammar
from tests.engines.grammar import judge

PAGE = Path(__file__).parents[3] / "docs" / "structured_output.md"
BEGIN, END = "<!-- schema table: begin -->\n", "<!-- schema table: end -->\n"
ALL, SOME, REFUSED = "●", "◐", "–"

_STRING = {
    "minLength": 2, "maxLength": 10, "pattern": "^(?!b)[a-z0-9-]*$", "format": "date", "enum": ["ab", "2024-02-29", "b", ""],  # noqa: E501
    "const": "2024-02-29", "anyOf": [{"maxLength": 1}, {"pattern": "-"}], "oneOf": [{"maxLength": 4}, {"pattern": "^a"}],  # noqa: E501
    "allOf": [{"pattern": "2"}, {"minLength": 1}], "not": {"enum": ["ab", "2024-02-29"]},
    "if": {"pattern": "^a"}, "$ref": "#/$defs/x",
}  # fmt: skip
_NUMBER = {
    "minimum": -2, "maximum": 12, "exclusiveMinimum": 0, "exclusiveMaximum": 12.5, "multipleOf": 0.5, "enum": [0, 1.5, 12, 99],  # noqa: E501
    "const": 1.5, "anyOf": [{"maximum": 1}, {"multipleOf": 3}], "oneOf": [{"type": "integer"}, {"minimum": 2}],
    "allOf": [{"minimum": 0}, {"maximum": 100}], "not": {"multipleOf": 4}, "if": {"minimum": 5}, "$ref": "#/$defs/x",
}  # fmt: skip
_ARRAY = {
    "items": {"type": ["integer", "boolean"]}, "prefixItems": [{"type": "integer"}], "minItems": 1, "maxItems": 2,
    "uniqueItems": True, "contains": {"const": 1}, "enum": [[], [1], [1, "a"]], "const": [1],
    "anyOf": [{"minItems": 2}, {"items": {"const": 1}}], "oneOf": [{"maxItems": 1}, {"minItems": 3}],
    "allOf": [{"items": {"minimum": 1}}, {"maxItems": 3}], "not": {"minItems": 2}, "if": {"minItems": 2},
    "unevaluatedItems": False, "$ref": "#/$defs/x",
}  # fmt: skip
_OBJECT = {
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"], "additionalProperties": {"type": "string"},  # noqa: E501
    "patternProperties": {"^[a-c]": {"type": ["integer", "string"]}}, "propertyNames": {"pattern": "^[a-d]$"}, "minProperties": 1,  # noqa: E501
    "maxProperties": 2, "dependentRequired": {"b": ["a"]}, "dependentSchemas": {"b": {"required": ["a"]}},
    "enum": [{}, {"a": 1}, {"a": 1, "b": "x"}], "const": {"a": 1}, "anyOf": [{"required": ["a"]}, {"maxProperties": 1}],
    "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "allOf": [{"maxProperties": 3}, {"properties": {"d": {"type": "string"}}}],  # noqa: E501
    "not": {"required": ["b"]}, "if": {"required": ["a"]}, "unevaluatedProperties": False, "$ref": "#/$defs/x",
}  # fmt: skip
_BESIDE_IF = {
    "string": {"maxLength": 5},
    "number": {"maximum": 11},
    "array": {"maxItems": 2},
    "object": {"maxProperties": 1},
}
_REFERRED = {
    "string": {"pattern": "^[^c]*$"}, "number": {"maximum": 50}, "array": {"maxItems": 2}, "object": {"maxProperties": 2},  # noqa: E501
}  # fmt: skip
KEYWORDS: dict[str, dict[str, Any]] = {"string": _STRING, "number": _NUMBER, "array": _ARRAY, "object": _OBJECT}
POOL: dict[str, list[Any]] = {
    "string": ["", "a", "b", "ab", "ba", "c-", "abc", "abcde", "a-2", "2024-02-29", "2023-02-29", "2024-13-01", "2024-05-01",  # noqa: E501
               "a" * 10, "a" * 11, "A", 'a"', "é", "2", "b2", "\n"],
    "number": [-5, -2, -1.5, 0, 0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 7.5, 8, 11, 12, 12.25, 12.5, 13, 50, 51, 99, 100, 101],
    "array": [[], [1], [2], [True], ["a"], [1, 1], [1, 2], [2, 1], [1, "a"], ["a", 1], [1, 1, 1], [1, 2, 3], [0], [1, False, 2, 3]],  # noqa: E501
    "object": [{}, {"a": 1}, {"a": "x"}, {"b": "x"}, {"b": 1}, {"a": 1, "b": "x"}, {"a": 1, "d": "y"}, {"d": "y"}, {"d": 1},  # noqa: E501
               {"e": "y"}, {"d": "y", "a": 1}, {"b": "x", "d": "y"}, {"a": 1, "b": "x", "d": "y"}, {"c": 1}, {"c": None},  # noqa: E501
               {"a": 1, "c": 2}, {"b": "x", "c": "z"}, {"d": "y", "e": "y"}, {"dd": "y"}, {"a": 1, "b": "x", "c": 1, "d": "y"}],  # noqa: E501
}  # fmt: skip


def schema(kind: str, *keywords: str) -> dict[str, Any]:
    """The schema of a cell."""
    result: dict[str, Any] = {"type": kind, **{keyword: KEYWORDS[kind][keyword] for keyword in keywords}}
    if "if" in keywords:
        result["then"] = _BESIDE_IF[kind]
    if "$ref" in keywords:
        result["$defs"] = {"x": _REFERRED[kind]}
    return result


def takes(compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Any, texts: list[str]) -> list[bool]:
    """Which of the texts are whole under the schema's grammar. Raises GrammarError where the schema is refused."""
    compiled = compiler.compile(Grammar(type="json_schema", value=json.dumps(schema), start=0))
    verdicts = []
    for text in texts:
        try:
            GrammarState(compiled).sync([*tokenizer.encode(text).ids, 0])
            verdicts.append(True)
        except GrammarError:
            verdicts.append(False)
    return verdicts


def cell(compiler: GrammarCompiler, tokenizer: Tokenizer, kind: str, *keywords: str) -> str:
    """ALL, SOME or REFUSED. Raises AssertionError where an invalid value would be taken."""
    wanted = schema(kind, *keywords)
    texts = [json.dumps(value, ensure_ascii=False) for value in (*POOL[kind], None, True, 7, "ab", [], {})]
    right = [judge.valid(wanted, text) for text in texts]
    try:
        taken = takes(compiler, tokenizer, wanted, texts)
    except GrammarError as error:
        if "matches no text" in error.message:
            assert not any(right), f"{wanted} is not empty"
            return ALL
        return REFUSED
    wrong = [text for text, is_right, is_taken in zip(texts, right, taken, strict=True) if is_taken and not is_right]
    assert not wrong, f"{wanted} takes {wrong}"
    return ALL if taken == right else SOME


def table(compiler: GrammarCompiler, tokenizer: Tokenizer) -> str:
    """The table as it stands in the page."""
    parts = []
    for kind, keywords in KEYWORDS.items():
        names = list(keywords)
        cells = {
            pair: cell(compiler, tokenizer, kind, *dict.fromkeys(pair))
            for pair in combinations_with_replacement(names, 2)
        }
        head = f"| {kind} | alone | " + " | ".join(f"`{name}`" for name in names[1:]) + " |\n"
        rule = "|---" * (len(names) + 1) + "|\n"
        rows = "".join(
            f"| `{name}` | {cells[name, name]} | "
            + " | ".join("" if j <= i else cells[name, names[j]] for j in range(1, len(names)))
            + " |\n"
            for i, name in enumerate(names)
        )
        parts.append(head + rule + rows)
    return "\n".join(parts)


def on_the_page() -> str:
    """What the page holds now."""
    return PAGE.read_text().split(BEGIN)[1].split(END)[0]


def main() -> None:
    """Writes the table into the page."""
    from tests.engines.grammar.conftest import make_compiler, train_tokenizer

    tokenizer = train_tokenizer()
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + table(make_compiler(tokenizer), tokenizer) + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
