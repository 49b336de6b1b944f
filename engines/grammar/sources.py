"""How each type of grammar is read, checked and handed to xgrammar."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engines.grammar.errors import GrammarError
from engines.grammar.layouts import layout
from engines.grammar.limits import MAX_SCHEMA_SECONDS, check_repetition, time_limit
from engines.grammar.schema_ebnf import literal, schema_ebnf

if TYPE_CHECKING:  # reading a grammar takes no xgrammar, which imports torch
    import xgrammar

MAX_CHARS = {"json_schema": 262_144, "structural_tag": 1_048_576, "choice": 262_144, "regex": 8_192, "grammar": 65_536}
MAX_CHOICES = 8_192
MAX_JSON_DEPTH = 200


@dataclass(frozen=True, slots=True)
class Source:
    """What xgrammar compiles. `kind`: `ebnf`, `regex`, or `tag` (a structural tag's JSON)."""

    kind: str
    text: str


def compiled(source: Source, compiler: xgrammar.GrammarCompiler) -> xgrammar.CompiledGrammar:
    """Raises what xgrammar raises."""
    match source.kind:
        case "regex":
            return compiler.compile_regex(source.text)
        case "tag":
            return compiler.compile_structural_tag(source.text)
    return compiler.compile_grammar(source.text)


def read(grammar_type: str, value: str) -> Source:
    """Reads and checks a grammar. Raises GrammarError.

    json_object takes no value. json_schema's is a schema, choice's a JSON list of strings, regex's a pattern that the
    whole text matches, grammar's an EBNF in llama.cpp's notation with a rule `root`, structural_tag's xgrammar's JSON.
    """
    with time_limit(MAX_SCHEMA_SECONDS):
        return _read(grammar_type, value)


def _read(grammar_type: str, value: str) -> Source:
    limit = MAX_CHARS.get(grammar_type)
    if limit is not None and len(value) > limit:
        raise GrammarError(f"a {grammar_type} may have at most {limit} characters, this one has {len(value)}")
    if "\0" in value:
        raise GrammarError("must not contain the character U+0000")
    match grammar_type:
        case "json_object":
            return Source("ebnf", schema_ebnf({"type": "object"}))
        case "json_schema":
            return Source("ebnf", schema_ebnf(_load(value, "the JSON schema")))
        case "choice":
            return Source("ebnf", _choice(_load(value, "choice")))
        case "regex":
            if not value:
                raise GrammarError("a regex must not be empty")
            check_repetition(value, ebnf=False)
            return Source("regex", value)
        case "structural_tag":
            return Source("tag", _structural_tag(_load(value, "the structural tag")))
    check_repetition(value, ebnf=True)
    return Source("ebnf", value)


def _load(text: str, what: str) -> Any:
    try:
        loaded = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise GrammarError(f"{what} is not valid JSON: {reason}") from None
    if _too_deep(loaded):
        raise GrammarError(f"{what} is nested deeper than {MAX_JSON_DEPTH} levels")
    return loaded


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
        ]
        if not level:
            return False
    return True


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _choice(values: Any) -> str:
    if not isinstance(values, list) or not values or not all(isinstance(v, str) and v for v in values):
        raise GrammarError("choice must be a JSON list of strings that are not empty")
    if len(values) > MAX_CHOICES:
        raise GrammarError(f"choice may have at most {MAX_CHOICES} entries, this one has {len(values)}")
    return "root ::= " + " | ".join(literal(v) for v in dict.fromkeys(values))


def _structural_tag(tag: Any) -> str:
    """Every JSON schema inside goes through the same check as one that stands alone, and has the same fixed layout.

    xgrammar's own `json_schema` format allows any whitespace, which a model can lose itself in, and drops keywords.
    """
    if not isinstance(tag, dict):
        raise GrammarError("a structural tag must be an object")

    def visit(node: Any) -> Any:
        if isinstance(node, list):
            return [visit(child) for child in node]
        if not isinstance(node, dict):
            return node
        if node.get("type") == "json_schema" and "json_schema" in node:
            if set(node) - {"type", "json_schema", "style", "quote"}:
                raise GrammarError("a json_schema inside of a structural tag takes no options but its style")
            style = layout(str(node["style"]), node.get("quote")) if "style" in node else None
            return {"type": "grammar", "grammar": schema_ebnf(node["json_schema"], style)}
        for kind, key in (("regex", "pattern"), ("grammar", "grammar")):
            if node.get("type") == kind and isinstance(node.get(key), str):
                check_repetition(node[key], ebnf=kind == "grammar")
        return {key: visit(child) for key, child in node.items()}

    return _dump(visit(tag))
